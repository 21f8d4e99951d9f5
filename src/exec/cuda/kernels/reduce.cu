// Reductions, in the tree of the CPU's kernels: the elements are cut into chunks of 1024; element j of a
// chunk goes to lane j mod 16; the lanes of a chunk are joined by halves, the chunks by a binary tree.
// T, I, FOLD, NEUTRAL and FINISH are defined before. Elements may be computed as they are read: then other
// parameters stand for x, and FROM makes an x of them.

typedef Wide<T>::type A;

#define CHUNK 1024
#define LANES 16

// What lane `lane` of chunk `chunk` sums.
template <class X> __device__ inline A lane_sum(X x, I chunk, u32 lane, I n) {
    A sum = NEUTRAL;
    I start = chunk * CHUNK;
    I end = n - start < CHUNK ? n : start + CHUNK;
    #pragma unroll 4
    for (I k = start + lane; k < end; k += LANES) sum = FOLD(sum, widen(x[over_at(k)]));
    return sum;
}

// The tree over values that lie `step` apart, into the first. All threads of a block call it, each with
// its place among `threads` that share the values.
__device__ inline void tree(A* values, u32 count, u32 step, u32 place, u32 threads) {
    for (u32 s = 1; s < count; s *= 2) {
        for (u32 k = place * 2 * s; k + s < count; k += threads * 2 * s) {
            values[(I)k * step] = FOLD(values[(I)k * step], values[(I)(k + s) * step]);
        }
        __syncthreads();
    }
}

// One chunk for each output: 16 threads each.
extern "C" __global__ void reduce_short(const T* x, T* result, i64 outputs, i64 n) {
    FROM
    __shared__ A lanes[256];
    u32 lane = threadIdx.x % LANES;
    I output = (I)blockIdx.x * 16 + threadIdx.x / LANES;
    lanes[threadIdx.x] = output < (I)outputs ? lane_sum(x + kept_at(output), 0, lane, (I)n) : NEUTRAL;
    __syncthreads();
    for (u32 half = LANES / 2; half > 0; half /= 2) {
        if (lane < half) lanes[threadIdx.x] = FOLD(lanes[threadIdx.x], lanes[threadIdx.x + half]);
        __syncthreads();
    }
    if (lane == 0 && output < (I)outputs) result[output] = narrow<T>(FINISH(lanes[threadIdx.x]));
}

// A block for `span` chunks of one output, 16 chunks at a time; `span` is a power of two of 16 to 4096.
// With one part for each output, the result; else partial sums.
extern "C" __global__ void reduce_rows(const T* x, T* result, A* partial, i64 outputs, i64 n, i64 parts, i64 span) {
    FROM
    __shared__ A lanes[256];
    __shared__ A rounds[256];
    u32 lane = threadIdx.x % LANES, team = threadIdx.x / LANES;
    I output = blockIdx.x / (I)parts, part = blockIdx.x % (I)parts;
    I chunks = ((I)n + CHUNK - 1) / CHUNK;
    I first = part * (I)span;
    I end = chunks - first < (I)span ? chunks : first + (I)span;
    auto from = x + kept_at(output);
    u32 round = 0;
    for (I chunk = first; chunk < end; chunk += 16, ++round) {
        u32 count = end - chunk < 16 ? (u32)(end - chunk) : 16;
        lanes[threadIdx.x] = team < count ? lane_sum(from, chunk + team, lane, (I)n) : NEUTRAL;
        __syncthreads();
        for (u32 half = LANES / 2; half > 0; half /= 2) {
            if (lane < half) lanes[threadIdx.x] = FOLD(lanes[threadIdx.x], lanes[threadIdx.x + half]);
            __syncthreads();
        }
        tree(lanes, count, LANES, threadIdx.x, blockDim.x);
        if (threadIdx.x == 0) rounds[round] = lanes[0];
        __syncthreads();
    }
    tree(rounds, round, 1, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) {
        if (parts == 1) result[output] = narrow<T>(FINISH(rounds[0]));
        else partial[part * (I)outputs + output] = rounds[0];
    }
}

// 32 outputs beside each other in memory, by 16 lanes; `span` chunks, a power of two of 1 to 16.
extern "C" __global__ void reduce_columns(const T* x, T* result, A* partial, i64 outputs, i64 n, i64 parts, i64 span) {
    FROM
    __shared__ A lanes[LANES * 32];
    __shared__ A rounds[16 * 32];
    u32 column = threadIdx.x % 32, lane = threadIdx.x / 32;
    I tiles = ((I)outputs + 31) / 32;
    I tile = blockIdx.x % tiles, part = blockIdx.x / tiles;
    I output = tile * 32 + column;
    I chunks = ((I)n + CHUNK - 1) / CHUNK;
    I first = part * (I)span;
    I end = chunks - first < (I)span ? chunks : first + (I)span;
    auto from = x + (output < (I)outputs ? kept_at(output) : 0);
    u32 round = 0;
    for (I chunk = first; chunk < end; ++chunk, ++round) {
        lanes[threadIdx.x] = output < (I)outputs ? lane_sum(from, chunk, lane, (I)n) : NEUTRAL;
        __syncthreads();
        for (u32 half = LANES / 2; half > 0; half /= 2) {
            if (lane < half) lanes[threadIdx.x] = FOLD(lanes[threadIdx.x], lanes[threadIdx.x + half * 32]);
            __syncthreads();
        }
        if (lane == 0) rounds[round * 32 + column] = lanes[column];
        __syncthreads();
    }
    tree(rounds + column, round, 32, lane, LANES);
    if (lane == 0 && output < (I)outputs) {
        if (parts == 1) result[output] = narrow<T>(FINISH(rounds[column]));
        else partial[part * (I)outputs + output] = rounds[column];
    }
}

// The tree over the parts of each output: a thread for each.
extern "C" __global__ void reduce_parts(A* partial, T* result, i64 outputs, i64 parts) {
    I output = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (output >= (I)outputs) return;
    A* values = partial + output;
    for (I s = 1; s < (I)parts; s *= 2) {
        for (I k = 0; k + s < (I)parts; k += 2 * s) {
            values[k * (I)outputs] = FOLD(values[k * (I)outputs], values[(k + s) * (I)outputs]);
        }
    }
    result[output] = narrow<T>(FINISH(values[0]));
}

// The same for many parts: a block for each output.
extern "C" __global__ void reduce_many_parts(A* partial, T* result, i64 outputs, i64 parts) {
    I output = blockIdx.x;
    tree(partial + output, (u32)parts, (u32)outputs, threadIdx.x, blockDim.x);
    if (threadIdx.x == 0) result[output] = narrow<T>(FINISH(partial[output]));
}
