// Looks for the first index outside 0 ≤ index < limit; one block of threads. What an earlier op of the step
// has found stays.

extern "C" __global__ void check_indices(const L* indices, u64* fault, i64 op, i64 count, i64 limit) {
    __shared__ i64 firsts[256];
    i64 first = count;
    for (i64 k = threadIdx.x; k < count && first == count; k += blockDim.x) {
        i64 index = (i64)indices[index_at((I)k)];
        if (index < 0 || index >= limit) first = k;
    }
    firsts[threadIdx.x] = first;
    __syncthreads();
    for (u32 reach = 128; reach > 0; reach /= 2) {
        if (threadIdx.x < reach && firsts[threadIdx.x + reach] < firsts[threadIdx.x]) {
            firsts[threadIdx.x] = firsts[threadIdx.x + reach];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0 && firsts[0] < count && fault[0] == 0) {
        fault[1] = (u64)firsts[0];
        fault[2] = (u64)(i64)indices[index_at((I)firsts[0])];
        fault[3] = (u64)limit;
        fault[0] = (u64)op + 1;
    }
}
