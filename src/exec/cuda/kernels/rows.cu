// What kernels over rows share: a block of threads for each row. Sums have the order of the CPU's kernels:
// blocks of 256 elements in eight lanes, and the blocks one after another in f64. T and I are defined before.

typedef Wide<T>::type A;

// The sum of value(k) for k < count; every thread of the block gets it.
template <class F> __device__ inline double ordered_sum(I count, F value) {
    __shared__ double blocks[32];
    u32 lane = threadIdx.x % 8, unit = threadIdx.x / 8, units = blockDim.x / 8;
    double total = 0.0;
    for (I start = 0; start < count; start += units * 256) {
        I first = start + unit * 256;
        I end = first + 256 < count ? first + 256 : count;
        A sum = 0;
        #pragma unroll 4
        for (I k = first + lane; k < end; k += 8) sum += value(k);
        sum += __shfl_xor_sync(0xffffffffu, sum, 4);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        if (lane == 0) blocks[unit] = (double)sum;
        __syncthreads();
        for (u32 k = 0; k < units && start + k * 256 < count; ++k) total += blocks[k];
        __syncthreads();
    }
    return total;
}

// The largest of value(k) for k < count; NaN is passed over. −∞ for none.
template <class F> __device__ inline A largest(I count, F value) {
    __shared__ A tops[256];
    A top = -infinity((A)0);
    for (I k = threadIdx.x; k < count; k += blockDim.x) {
        A here = value(k);
        if (here > top) top = here;
    }
    tops[threadIdx.x] = top;
    __syncthreads();
    for (u32 reach = 128; reach > 0; reach /= 2) {
        if (threadIdx.x < reach && threadIdx.x + reach < blockDim.x && tops[threadIdx.x + reach] > tops[threadIdx.x]) {
            tops[threadIdx.x] = tops[threadIdx.x + reach];
        }
        __syncthreads();
    }
    top = tops[0];
    __syncthreads();
    return top;
}

// log Σ exp in two parts, whose sum it is: the largest element (0 where all are −∞, so that differences stay
// defined), and the logarithm of the sum against it.
template <class F> __device__ inline void log_sum_exp(I count, F value, A* shift, A* log_sum) {
    A top = largest(count, value);
    top = top == -infinity((A)0) ? (A)0 : top;
    double total = ordered_sum(count, [&](I k) { return exp_of(value(k) - top); });
    *shift = top;
    *log_sum = (A)log(total);
}
