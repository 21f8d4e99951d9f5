// Rows of a table by index, and sums of rows by index. An index outside the table names no row: the check
// before it has told of that, and the step fails when it ends. T is the type of elements, L that of indices.

extern "C" __global__ void gather(const M* table, const L* ids, M* to, i64 count, i64 width, i64 rows) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= (I)count) return;
    I row = index / (I)width, column = index % (I)width;
    i64 id = (i64)ids[row];
    if (id >= 0 && id < rows) to[index] = table[(I)id * (I)width + column];
}
