// Scaled dot-product attention over tiles of queries and keys with a running softmax, and its gradient, which
// makes the probabilities again from the saved log-sum-exp. The score matrix is only ever a tile in registers.
// Defined before: T, I; CAUSAL, GRADIENT; Q_ROW, Q_COLUMN, … (strides) and q_at(head), ….

typedef Wide<T>::type A;

// How many keys, from the first on, a query sees.
__device__ inline I visible(I query, I queries, I keys) {
    if (!CAUSAL) return keys;
    I seen = query + 1 + keys;
    seen = seen > queries ? seen - queries : 0;
    return seen < keys ? seen : keys;
}

#if GRADIENT

// Σ g·o of every query: eight threads each.
extern "C" __global__ void attention_delta(const T* g, const T* o, A* delta, i64 rows, i64 queries, i64 values) {
    I row = ((I)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    u32 lane = threadIdx.x % 8;
    A sum = 0;
    if (row < (I)rows) {
        const T* from_g = g + g_at(row / (I)queries) + row % (I)queries * G_ROW;
        const T* from_o = o + o_at(row / (I)queries) + row % (I)queries * O_ROW;
        for (I e = lane; e < (I)values; e += 8) sum += widen(from_g[e * G_COLUMN]) * widen(from_o[e * O_COLUMN]);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if (lane == 0 && row < (I)rows) delta[row] = sum;
}

// A score becomes its probability p, and a gradient of p the gradient p·(dp − delta) of the score.
__device__ inline void score_gradient(A* p, A* dp, bool is_seen, A lse, A delta) {
    // A query that sees nothing, or −∞ only, has no gradient.
    is_seen = is_seen && lse != -infinity((A)0);
    *p = is_seen ? exp_of(*p - lse) : (A)0;
    *dp = is_seen ? *p * (*dp - delta) : (A)0;
}

#endif

