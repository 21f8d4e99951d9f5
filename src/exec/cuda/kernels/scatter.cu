// Sums of rows by index, repeated ones in the order of their positions. An index outside the result was found
// by the check before; here it names no row. T is the type of elements, L that of indices.

typedef Wide<T>::type A;

// For few indices: every element looks at all of them.
extern "C" __global__ void scatter_few(const L* ids, const T* values, T* sums, i64 count, i64 width, i64 ids_count) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I row = index / (I)width, column = index % (I)width;
    A total = 0;
    for (I k = 0; k < (I)ids_count; ++k) {
        if ((i64)ids[k] == (i64)row) total += widen(values[k * (I)width + column]);
    }
    sums[index] = narrow<T>(total);
}

// How many indices name each row. Whole numbers are the same in every order.
extern "C" __global__ void scatter_count(const L* ids, u32* counts, i64 ids_count, i64 rows) {
    I k = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= (I)ids_count) return;
    i64 id = (i64)ids[k];
    if (id >= 0 && id < rows) atomicAdd(&counts[id], 1u);
}

// Where the positions of each row start, and in the second list where its next one goes. One block.
extern "C" __global__ void scatter_starts(u32* counts, u32* starts, i64 rows) {
    __shared__ u32 sums[512];
    i64 part = (rows + blockDim.x - 1) / blockDim.x;
    i64 first = (i64)threadIdx.x * part, end = first + part < rows ? first + part : rows;
    u32 sum = 0;
    for (i64 row = first; row < end; ++row) sum += counts[row];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (u32 reach = 1; reach < blockDim.x; reach *= 2) {
        u32 before = threadIdx.x >= reach ? sums[threadIdx.x - reach] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
        __syncthreads();
    }
    u32 start = sums[threadIdx.x] - sum;
    for (i64 row = first; row < end; ++row) {
        u32 count = counts[row];
        starts[row] = start;
        counts[row] = start;
        start += count;
    }
    if (threadIdx.x == blockDim.x - 1) starts[rows] = sums[threadIdx.x];
}

// The positions by row, in any order within one.
extern "C" __global__ void scatter_place(const L* ids, u32* next, u32* places, i64 ids_count, i64 rows) {
    I k = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= (I)ids_count) return;
    i64 id = (i64)ids[k];
    if (id >= 0 && id < rows) places[atomicAdd(&next[id], 1u)] = (u32)k;
}

// The positions by row in their order: each counts those of its row that are before it.
extern "C" __global__ void scatter_sort(
    const L* ids, const u32* starts, const u32* places, u32* sorted, i64 ids_count, i64 rows
) {
    I k = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= (I)ids_count) return;
    i64 id = (i64)ids[k];
    if (id < 0 || id >= rows) return;
    u32 start = starts[id], end = starts[id + 1], rank = 0;
    for (u32 other = start; other < end; ++other) rank += places[other] < (u32)k;
    sorted[start + rank] = (u32)k;
}

extern "C" __global__ void scatter_sum(const u32* starts, const u32* sorted, const T* values, T* sums, i64 count, i64 width) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I row = index / (I)width, column = index % (I)width;
    A total = 0;
    #pragma unroll 4
    for (u32 k = starts[row]; k < starts[row + 1]; ++k) total += widen(values[(I)sorted[k] * (I)width + column]);
    sums[index] = narrow<T>(total);
}
