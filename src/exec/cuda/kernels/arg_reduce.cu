// The index of the first largest (or smallest) element along an axis. T, I, TEAM (the threads of one output)
// and BETTER are defined before.

typedef Wide<T>::type A;

// NaN counts as largest and as smallest; of equals the first wins.
__device__ inline bool wins(A x, int index, A best, int place) {
    bool nan = x != x, best_nan = best != best;
    if (nan || best_nan) return nan && (!best_nan || index < place);
    return BETTER(x, best) || (x == best && index < place);
}

extern "C" __global__ void arg_reduce(const T* x, int* result, i64 outputs, i64 size, i64 stride) {
    __shared__ A values[128];
    __shared__ int places[128];
    I output = ((I)blockIdx.x * blockDim.x + threadIdx.x) / TEAM;
    u32 member = threadIdx.x % TEAM;
    bool is_there = output < (I)outputs;
    const T* from = x + (is_there ? kept_at(output) : 0);
    // Whoever has no element of its own starts with the first.
    int place = member < (I)size ? (int)member : 0;
    A best = is_there ? widen(from[(I)place * (I)stride]) : (A)0;
    if (is_there) {
        for (I k = member + TEAM; k < (I)size; k += TEAM) {
            A value = widen(from[k * (I)stride]);
            if (wins(value, (int)k, best, place)) {
                best = value;
                place = (int)k;
            }
        }
    }
    values[threadIdx.x] = best;
    places[threadIdx.x] = place;
    __syncthreads();
    for (u32 half = TEAM / 2; half > 0; half /= 2) {
        if (member < half && wins(values[threadIdx.x + half], places[threadIdx.x + half], values[threadIdx.x], places[threadIdx.x])) {
            values[threadIdx.x] = values[threadIdx.x + half];
            places[threadIdx.x] = places[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (member == 0 && is_there) result[output] = places[threadIdx.x];
}
