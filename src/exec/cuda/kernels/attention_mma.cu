// Attention and its gradient in half types: products of tiles by warps of four, each with 16 rows of a tile of 64.
// Defined before: DP and EP, the depth and the values filled up to a multiple of 16; SIDE, the keys (queries, for
// the keys' gradient) of a tile beside that; PART, the columns of a block of gradients; VECTOR, whether eight
// elements of every operand can be loaded at once.

struct alignas(16) Eight { u32 words[4]; };

// Words of a row of a tile: rows start in different banks.
#define WORDS(width) (((width) + 8) / 2)

// Eight elements from column `column` on; 0 beyond `width` and in rows that are not there.
__device__ inline Eight eight(const T* row, bool is_there, I column, I width, I stride) {
    Eight result;
#if VECTOR
    (void)stride;
    if (is_there && column < width) return *(const Eight*)(row + column);
    result.words[0] = result.words[1] = result.words[2] = result.words[3] = 0;
#else
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        I at = column + 2 * k;
        u32 low = is_there && at < width ? row[at * stride].bits : 0;
        u32 high = is_there && at + 1 < width ? row[(at + 1) * stride].bits : 0;
        result.words[k] = low | high << 16;
    }
#endif
    return result;
}

// COUNT rows from `first` on, as they are.
template <int COUNT, int WIDTH>
__device__ inline void load_rows(u32* tile, const T* from, I first, I rows, I width, I row_stride, I stride) {
    for (u32 index = threadIdx.x; index < COUNT * (WIDTH / 8); index += 128) {
        u32 row = index / (WIDTH / 8), column = index % (WIDTH / 8) * 8;
        bool is_there = first + row < rows;
        Eight value = eight(from + (is_there ? (first + row) * row_stride : 0), is_there, column, width, stride);
        u32* to = tile + row * WORDS(WIDTH) + column / 2;
        #pragma unroll
        for (int k = 0; k < 4; ++k) to[k] = value.words[k];
    }
}

// COUNT rows from `first` on with WIDTH columns from `start` on, turned: words hold two rows of one column.
template <int COUNT, int WIDTH>
__device__ inline void load_turned(u32* tile, const T* from, I first, I rows, I start, I width, I row_stride, I stride) {
    for (u32 index = threadIdx.x; index < COUNT / 2 * (WIDTH / 8); index += 128) {
        u32 pair = index % (COUNT / 2), column = index / (COUNT / 2) * 8;
        I row = first + 2 * pair;
        bool one = row < rows, two = row + 1 < rows;
        Eight upper = eight(from + (one ? row * row_stride : 0), one, start + column, width, stride);
        Eight lower = eight(from + (two ? (row + 1) * row_stride : 0), two, start + column, width, stride);
        #pragma unroll
        for (int k = 0; k < 8; ++k) {
            u32 high = lower.words[k / 2] >> (k % 2 * 16), low = upper.words[k / 2] >> (k % 2 * 16);
            tile[(column + k) * WORDS(COUNT) + pair] = (low & 0xffffu) | high << 16;
        }
    }
}

// Rows `row` and `row + 8` as left operands: a word for each pair of columns of this lane.
template <int STEPS>
__device__ inline void load_left(u32 (&left)[STEPS][4], const T* from, I row, I rows, I width, I row_stride, I stride) {
    u32 t = threadIdx.x % 4;
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            I at = row + k % 2 * 8, column = step * 16 + k / 2 * 8 + t * 2;
            u32 low = at < rows && column < width ? from[at * row_stride + column * stride].bits : 0;
            u32 high = at < rows && column + 1 < width ? from[at * row_stride + (column + 1) * stride].bits : 0;
            left[step][k] = low | high << 16;
        }
    }
}

template <int N> __device__ inline void clear_sums(float (&sums)[N][4]) {
    #pragma unroll
    for (int n = 0; n < N; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0.0f;
}

// sums += left · tile, whose rows are columns of the product (of STEPS·16 terms in WIDTH).
template <int STEPS, int N, int WIDTH>
__device__ inline void add_products(float (&sums)[N][4], const u32 (&left)[STEPS][4], const u32* tile) {
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        #pragma unroll
        for (int n = 0; n < N; ++n) {
            const u32* row = tile + (n * 8 + g) * WORDS(WIDTH) + step * 8 + t;
            mma(sums[n], left[step], row[0], row[4]);
        }
    }
}

// Sums as the left operand of the next product.
template <int N> __device__ inline void as_left(u32 (&left)[N / 2][4], const float (&sums)[N][4]) {
    #pragma unroll
    for (int step = 0; step < N / 2; ++step) {
        #pragma unroll
        for (int k = 0; k < 2; ++k) {
            const float* from = sums[2 * step + k];
            left[step][2 * k] = two_halves(from[0], from[1]);
            left[step][2 * k + 1] = two_halves(from[2], from[3]);
        }
    }
}

// Over the four lanes of a row.
__device__ inline float quad_max(float x) {
    float other = __shfl_xor_sync(0xffffffffu, x, 1);
    x = other > x ? other : x;
    other = __shfl_xor_sync(0xffffffffu, x, 2);
    return other > x ? other : x;
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#if !GRADIENT

extern "C" __global__ void attention(
    const T* q, const T* k, const T* v, T* o, A* lse, i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ __align__(16) u32 k_tile[SIDE * WORDS(DP)];
    __shared__ __align__(16) u32 v_turned[EP * WORDS(SIDE)];
    I tiles = ((I)queries + 63) / 64, head = blockIdx.x / tiles;
    // The last tiles have the most to do: they come first.
    I query = (tiles - 1 - blockIdx.x % tiles) * 64;
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    I row = query + threadIdx.x / 32 * 16 + g;
    u32 left[DP / 16][4];
    load_left<DP / 16>(left, q + q_at(head), row, (I)queries, (I)depth, Q_ROW, Q_COLUMN);
    const T* from_k = k + k_at(head);
    const T* from_v = v + v_at(head);
    I limits[2] = {
        row < (I)queries ? visible(row, (I)queries, (I)keys) : 0,
        row + 8 < (I)queries ? visible(row + 8, (I)queries, (I)keys) : 0,
    };
    float top[2] = {-infinity(0.0f), -infinity(0.0f)}, total[2] = {0.0f, 0.0f}, sums[EP / 8][4];
    clear_sums(sums);
    I last = query + 64 < (I)queries ? query + 64 : (I)queries;
    I seen = visible(last - 1, (I)queries, (I)keys);
    for (I key = 0; key < seen; key += SIDE) {
        load_rows<SIDE, DP>(k_tile, from_k, key, seen, (I)depth, K_ROW, K_COLUMN);
        load_turned<SIDE, EP>(v_turned, from_v, key, seen, 0, (I)values, V_ROW, V_COLUMN);
        __syncthreads();
        float scores[SIDE / 8][4];
        clear_sums(scores);
        add_products<DP / 16, SIDE / 8, DP>(scores, left, k_tile);
        float fades[2];
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            float here = -infinity(0.0f);
            #pragma unroll
            for (int n = 0; n < SIDE / 8; ++n) {
                #pragma unroll
                for (int k = 0; k < 2; ++k) {
                    float* score = &scores[n][2 * half + k];
                    *score *= (float)scale;
                    if (key + n * 8 + t * 2 + k < limits[half] && *score > here) here = *score;
                }
            }
            here = quad_max(here);
            float now = here > top[half] ? here : top[half];
            // Where everything so far is −∞, differences stay defined.
            float shift = now == -infinity(0.0f) ? 0.0f : now, sum = 0.0f;
            fades[half] = exp_of(top[half] - shift);
            #pragma unroll
            for (int n = 0; n < SIDE / 8; ++n) {
                #pragma unroll
                for (int k = 0; k < 2; ++k) {
                    float* score = &scores[n][2 * half + k];
                    *score = key + n * 8 + t * 2 + k < limits[half] ? exp_of(*score - shift) : 0.0f;
                    sum += *score;
                }
            }
            total[half] = total[half] * fades[half] + sum;
            top[half] = now;
        }
        #pragma unroll
        for (int n = 0; n < EP / 8; ++n) {
            sums[n][0] *= fades[0];
            sums[n][1] *= fades[0];
            sums[n][2] *= fades[1];
            sums[n][3] *= fades[1];
        }
        u32 p[SIDE / 16][4];
        as_left<SIDE / 8>(p, scores);
        add_products<SIDE / 16, EP / 8, SIDE>(sums, p, v_turned);
        __syncthreads();
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        I at = row + 8 * half;
        float all = quad_sum(total[half]);
        bool masked = all == 0.0f;
        float factor = masked ? 0.0f : 1.0f / all;
        if (at >= (I)queries) continue;
        #pragma unroll
        for (int n = 0; n < EP / 8; ++n) {
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                I e = n * 8 + t * 2 + k;
                if (e < (I)values) o[(head * (I)queries + at) * (I)values + e] = narrow<T>(sums[n][2 * half + k] * factor);
            }
        }
        if (t == 0) {
            lse[head * (I)queries + at] = masked ? -infinity(0.0f) : top[half] + (float)log((double)all);
        }
    }
}

#else

extern "C" __global__ void attention_grad_queries(
    const T* q, const T* k, const T* v, const A* lse, const T* g, const A* delta, T* dq,
    i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ __align__(16) u32 k_tile[SIDE * WORDS(DP)];
    __shared__ __align__(16) u32 v_tile[SIDE * WORDS(EP)];
    __shared__ __align__(16) u32 k_turned[PART * WORDS(SIDE)];
    I tiles = ((I)queries + 63) / 64, head = blockIdx.x / tiles;
    I query = (tiles - 1 - blockIdx.x % tiles) * 64, start = (I)blockIdx.y * PART;
    u32 group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    I row = query + threadIdx.x / 32 * 16 + group;
    u32 q_left[DP / 16][4], g_left[EP / 16][4];
    load_left<DP / 16>(q_left, q + q_at(head), row, (I)queries, (I)depth, Q_ROW, Q_COLUMN);
    load_left<EP / 16>(g_left, g + g_at(head), row, (I)queries, (I)values, G_ROW, G_COLUMN);
    const T* from_k = k + k_at(head);
    const T* from_v = v + v_at(head);
    I limits[2];
    float log_sums[2], shares[2], sums[PART / 8][4];
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        I at = row + 8 * half;
        bool is_query = at < (I)queries;
        limits[half] = is_query ? visible(at, (I)queries, (I)keys) : 0;
        log_sums[half] = is_query ? lse[lse_at(head * (I)queries + at)] : 0.0f;
        shares[half] = is_query ? delta[head * (I)queries + at] : 0.0f;
    }
    clear_sums(sums);
    I last = query + 64 < (I)queries ? query + 64 : (I)queries;
    I seen = visible(last - 1, (I)queries, (I)keys);
    for (I key = 0; key < seen; key += SIDE) {
        load_rows<SIDE, DP>(k_tile, from_k, key, seen, (I)depth, K_ROW, K_COLUMN);
        load_rows<SIDE, EP>(v_tile, from_v, key, seen, (I)values, V_ROW, V_COLUMN);
        load_turned<SIDE, PART>(k_turned, from_k, key, seen, start, (I)depth, K_ROW, K_COLUMN);
        __syncthreads();
        float p[SIDE / 8][4], dp[SIDE / 8][4];
        clear_sums(p);
        clear_sums(dp);
        add_products<DP / 16, SIDE / 8, DP>(p, q_left, k_tile);
        add_products<EP / 16, SIDE / 8, EP>(dp, g_left, v_tile);
        #pragma unroll
        for (int n = 0; n < SIDE / 8; ++n) {
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                p[n][k] *= (float)scale;
                bool is_seen = key + n * 8 + t * 2 + k % 2 < limits[k / 2];
                score_gradient(&p[n][k], &dp[n][k], is_seen, log_sums[k / 2], shares[k / 2]);
            }
        }
        u32 left[SIDE / 16][4];
        as_left<SIDE / 8>(left, dp);
        add_products<SIDE / 16, PART / 8, SIDE>(sums, left, k_turned);
        __syncthreads();
    }
    #pragma unroll
    for (int n = 0; n < PART / 8; ++n) {
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            I at = row + k / 2 * 8, d = start + n * 8 + t * 2 + k % 2;
            if (at < (I)queries && d < (I)depth) {
                dq[(head * (I)queries + at) * (I)depth + d] = narrow<T>(sums[n][k] * (float)scale);
            }
        }
    }
}

// Rows are keys here, columns queries.
extern "C" __global__ void attention_grad_keys(
    const T* q, const T* k, const T* v, const A* lse, const T* g, const A* delta, T* dk, T* dv,
    i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ __align__(16) u32 q_tile[SIDE * WORDS(DP)];
    __shared__ __align__(16) u32 g_tile[SIDE * WORDS(EP)];
    __shared__ __align__(16) u32 q_turned[PART * WORDS(SIDE)];
    __shared__ __align__(16) u32 g_turned[PART * WORDS(SIDE)];
    __shared__ float log_sums[SIDE];
    __shared__ float shares[SIDE];
    I tiles = ((I)keys + 63) / 64, head = blockIdx.x / tiles;
    I key = blockIdx.x % tiles * 64, start = (I)blockIdx.y * PART;
    u32 group = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    I row = key + threadIdx.x / 32 * 16 + group;
    u32 k_left[DP / 16][4], v_left[EP / 16][4];
    load_left<DP / 16>(k_left, k + k_at(head), row, (I)keys, (I)depth, K_ROW, K_COLUMN);
    load_left<EP / 16>(v_left, v + v_at(head), row, (I)keys, (I)values, V_ROW, V_COLUMN);
    const T* from_q = q + q_at(head);
    const T* from_g = g + g_at(head);
    float dk_sums[PART / 8][4], dv_sums[PART / 8][4];
    clear_sums(dk_sums);
    clear_sums(dv_sums);
    // The first query that sees a key of the tile.
    I first = CAUSAL && key + (I)queries > (I)keys ? key + (I)queries - (I)keys : 0;
    for (I query = first / SIDE * SIDE; query < (I)queries; query += SIDE) {
        load_rows<SIDE, DP>(q_tile, from_q, query, (I)queries, (I)depth, Q_ROW, Q_COLUMN);
        load_rows<SIDE, EP>(g_tile, from_g, query, (I)queries, (I)values, G_ROW, G_COLUMN);
        load_turned<SIDE, PART>(q_turned, from_q, query, (I)queries, start, (I)depth, Q_ROW, Q_COLUMN);
        load_turned<SIDE, PART>(g_turned, from_g, query, (I)queries, start, (I)values, G_ROW, G_COLUMN);
        if (threadIdx.x < SIDE) {
            I at = query + threadIdx.x;
            log_sums[threadIdx.x] = at < (I)queries ? lse[lse_at(head * (I)queries + at)] : 0.0f;
            shares[threadIdx.x] = at < (I)queries ? delta[head * (I)queries + at] : 0.0f;
        }
        __syncthreads();
        float p[SIDE / 8][4], dp[SIDE / 8][4];
        clear_sums(p);
        clear_sums(dp);
        add_products<DP / 16, SIDE / 8, DP>(p, k_left, q_tile);
        add_products<EP / 16, SIDE / 8, EP>(dp, v_left, g_tile);
        #pragma unroll
        for (int n = 0; n < SIDE / 8; ++n) {
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                u32 column = n * 8 + t * 2 + k % 2;
                I at = query + column;
                bool is_seen = at < (I)queries && row + k / 2 * 8 < visible(at, (I)queries, (I)keys);
                p[n][k] *= (float)scale;
                score_gradient(&p[n][k], &dp[n][k], is_seen, log_sums[column], shares[column]);
            }
        }
        u32 left[SIDE / 16][4];
        as_left<SIDE / 8>(left, p);
        add_products<SIDE / 16, PART / 8, SIDE>(dv_sums, left, g_turned);
        as_left<SIDE / 8>(left, dp);
        add_products<SIDE / 16, PART / 8, SIDE>(dk_sums, left, q_turned);
        __syncthreads();
    }
    #pragma unroll
    for (int n = 0; n < PART / 8; ++n) {
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            I at = row + k / 2 * 8, c = start + n * 8 + t * 2 + k % 2;
            if (at >= (I)keys) continue;
            if (c < (I)depth) dk[(head * (I)keys + at) * (I)depth + c] = narrow<T>(dk_sums[n][k] * (float)scale);
            if (c < (I)values) dv[(head * (I)keys + at) * (I)values + c] = narrow<T>(dv_sums[n][k]);
        }
    }
}

#endif
