// Moves elements from one layout to another.

extern "C" __global__ void transfer(const T* from, T* to, i64 count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index < (I)count) to[to_at(index)] = from[from_at(index)];
}

// The same in squares, for sources whose rows are columns of the target: threads beside each other read
// elements beside each other, and write such. Blocks are numbered through the planes.
extern "C" __global__ void turn(const T* from, T* to, i64 rows, i64 columns, i64 row_stride, i64 column_stride) {
    __shared__ T tile[32][33];
    I across = (I)((columns + 31) / 32), down = (I)((rows + 31) / 32);
    I plane = blockIdx.x / (across * down), square = blockIdx.x % (across * down);
    I row = square / across * 32, column = square % across * 32;
    const T* source = from + plane_from_at(plane);
    T* target = to + plane_to_at(plane);
    u32 x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (u32 k = y; k < 32; k += 8) {
        if (column + k < (I)columns && row + x < (I)rows) tile[k][x] = source[(row + x) + (column + k) * (I)column_stride];
    }
    __syncthreads();
    for (u32 k = y; k < 32; k += 8) {
        if (row + k < (I)rows && column + x < (I)columns) target[(row + k) * (I)row_stride + (column + x)] = tile[x][k];
    }
}
