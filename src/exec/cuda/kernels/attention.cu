// Attention and its gradient in any type, in tiles of 16·MICRO queries and keys by 256 threads. EM is defined
// before: a block has 16·EM columns of results.

#define WIDTH (16 * EM)

// Over the 16 threads of a row of a tile.
__device__ inline A row_max(A x) {
    for (int reach = 8; reach > 0; reach /= 2) {
        A other = __shfl_xor_sync(0xffffffffu, x, reach);
        x = other > x ? other : x;
    }
    return x;
}
__device__ inline A row_sum(A x) {
    for (int reach = 8; reach > 0; reach /= 2) x += __shfl_xor_sync(0xffffffffu, x, reach);
    return x;
}

// Stores a thread's part of a tile where it is the left operand of a product: by column, then row.
__device__ inline void put(A* tile, const A (&values)[MICRO][MICRO]) {
    u32 row = threadIdx.x / 16 * MICRO, column = threadIdx.x % 16 * MICRO;
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) tile[(column + j) * (TILE + PAD) + row + i] = values[i][j];
    }
}

// sums += the tile's rows times right(k, column), for k below `count`.
template <class F> __device__ inline void add_product(A (&sums)[MICRO][EM], const A* tile, A* right, I count, F value) {
    for (u32 start = 0; start < TILE && start < count; start += STEP) {
        fill<WIDTH, false>(right, [&](u32 k, u32 column) {
            return start + k < count ? value(start + k, column) : (A)0;
        });
        __syncthreads();
        multiply<MICRO, EM, TILE + PAD, WIDTH + PAD>(sums, tile + start * (TILE + PAD), right);
        __syncthreads();
    }
}

#if !GRADIENT

extern "C" __global__ void attention(
    const T* q, const T* k, const T* v, T* o, A* lse, i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * ((WIDTH > TILE ? WIDTH : TILE) + PAD)];
    __shared__ A tile[TILE * (TILE + PAD)];
    I tiles = ((I)queries + TILE - 1) / TILE, head = blockIdx.x / tiles;
    // The last tiles have the most to do: they come first.
    I query = (tiles - 1 - blockIdx.x % tiles) * TILE, chunk = (I)blockIdx.y * WIDTH;
    const T* from_q = q + q_at(head);
    const T* from_k = k + k_at(head);
    const T* from_v = v + v_at(head);
    u32 row = threadIdx.x / 16 * MICRO, column = threadIdx.x % 16 * MICRO;
    A top[MICRO], total[MICRO], sums[MICRO][EM];
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        top[i] = -infinity((A)0);
        total[i] = 0;
    }
    clear(sums);
    I last = query + TILE < (I)queries ? query + TILE : (I)queries;
    I seen = visible(last - 1, (I)queries, (I)keys);
    for (I key = 0; key < seen; key += TILE) {
        A scores[MICRO][MICRO];
        tile_product<true, true>(scores, left, right, (I)0, (I)depth,
            [&](u32 i, I d) {
                return query + i < (I)queries ? widen(from_q[(query + i) * Q_ROW + d * Q_COLUMN]) : (A)0;
            },
            [&](I d, u32 j) { return key + j < seen ? widen(from_k[(key + j) * K_ROW + d * K_COLUMN]) : (A)0; });
        #pragma unroll
        for (int i = 0; i < MICRO; ++i) {
            I limit = query + row + i < (I)queries ? visible(query + row + i, (I)queries, (I)keys) : 0;
            A here = -infinity((A)0);
            #pragma unroll
            for (int j = 0; j < MICRO; ++j) {
                scores[i][j] *= (A)scale;
                if (key + column + j < limit && scores[i][j] > here) here = scores[i][j];
            }
            here = row_max(here);
            A now = here > top[i] ? here : top[i];
            // Where everything so far is −∞, differences stay defined.
            A shift = now == -infinity((A)0) ? (A)0 : now;
            A fade = exp_of(top[i] - shift), sum = 0;
            #pragma unroll
            for (int j = 0; j < MICRO; ++j) {
                scores[i][j] = key + column + j < limit ? exp_of(scores[i][j] - shift) : (A)0;
                sum += scores[i][j];
            }
            total[i] = total[i] * fade + row_sum(sum);
            top[i] = now;
            #pragma unroll
            for (int j = 0; j < EM; ++j) sums[i][j] *= fade;
        }
        put(tile, scores);
        __syncthreads();
        add_product(sums, tile, right, seen - key, [&](u32 j, u32 e) {
            return chunk + e < (I)values ? widen(from_v[(key + j) * V_ROW + (chunk + e) * V_COLUMN]) : (A)0;
        });
    }
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        I at = query + row + i;
        if (at >= (I)queries) continue;
        bool masked = total[i] == (A)0;
        A factor = masked ? (A)0 : (A)1 / total[i];
        #pragma unroll
        for (int j = 0; j < EM; ++j) {
            I e = chunk + threadIdx.x % 16 * EM + j;
            if (e < (I)values) o[(head * (I)queries + at) * (I)values + e] = narrow<T>(sums[i][j] * factor);
        }
        if (chunk == 0 && column == 0) {
            lse[head * (I)queries + at] = masked ? -infinity((A)0) : top[i] + (A)log((double)total[i]);
        }
    }
}

#else

extern "C" __global__ void attention_grad_queries(
    const T* q, const T* k, const T* v, const A* lse, const T* g, const A* delta, T* dq,
    i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * ((WIDTH > TILE ? WIDTH : TILE) + PAD)];
    __shared__ A tile[TILE * (TILE + PAD)];
    I tiles = ((I)queries + TILE - 1) / TILE, head = blockIdx.x / tiles;
    I query = (tiles - 1 - blockIdx.x % tiles) * TILE, chunk = (I)blockIdx.y * WIDTH;
    const T* from_q = q + q_at(head);
    const T* from_k = k + k_at(head);
    const T* from_v = v + v_at(head);
    const T* from_g = g + g_at(head);
    u32 row = threadIdx.x / 16 * MICRO, column = threadIdx.x % 16 * MICRO;
    A sums[MICRO][EM];
    clear(sums);
    I last = query + TILE < (I)queries ? query + TILE : (I)queries;
    I seen = visible(last - 1, (I)queries, (I)keys);
    for (I key = 0; key < seen; key += TILE) {
        A p[MICRO][MICRO], dp[MICRO][MICRO];
        tile_product<true, true>(p, left, right, (I)0, (I)depth,
            [&](u32 i, I d) {
                return query + i < (I)queries ? widen(from_q[(query + i) * Q_ROW + d * Q_COLUMN]) : (A)0;
            },
            [&](I d, u32 j) { return key + j < seen ? widen(from_k[(key + j) * K_ROW + d * K_COLUMN]) : (A)0; });
        tile_product<true, true>(dp, left, right, (I)0, (I)values,
            [&](u32 i, I e) {
                return query + i < (I)queries ? widen(from_g[(query + i) * G_ROW + e * G_COLUMN]) : (A)0;
            },
            [&](I e, u32 j) { return key + j < seen ? widen(from_v[(key + j) * V_ROW + e * V_COLUMN]) : (A)0; });
        #pragma unroll
        for (int i = 0; i < MICRO; ++i) {
            I at = query + row + i;
            bool is_query = at < (I)queries;
            I limit = is_query ? visible(at, (I)queries, (I)keys) : 0;
            A log_sum = is_query ? lse[lse_at(head * (I)queries + at)] : (A)0;
            A share = is_query ? delta[head * (I)queries + at] : (A)0;
            #pragma unroll
            for (int j = 0; j < MICRO; ++j) {
                p[i][j] *= (A)scale;
                score_gradient(&p[i][j], &dp[i][j], key + column + j < limit, log_sum, share);
            }
        }
        put(tile, dp);
        __syncthreads();
        add_product(sums, tile, right, seen - key, [&](u32 j, u32 d) {
            return chunk + d < (I)depth ? widen(from_k[(key + j) * K_ROW + (chunk + d) * K_COLUMN]) : (A)0;
        });
    }
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < EM; ++j) {
            I at = query + row + i, d = chunk + threadIdx.x % 16 * EM + j;
            if (at < (I)queries && d < (I)depth) {
                dq[(head * (I)queries + at) * (I)depth + d] = narrow<T>(sums[i][j] * (A)scale);
            }
        }
    }
}

// Rows of tiles are keys here, columns queries.
extern "C" __global__ void attention_grad_keys(
    const T* q, const T* k, const T* v, const A* lse, const T* g, const A* delta, T* dk, T* dv,
    i64 queries, i64 keys, i64 depth, i64 values, double scale
) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * ((WIDTH > TILE ? WIDTH : TILE) + PAD)];
    __shared__ A tile[TILE * (TILE + PAD)];
    I tiles = ((I)keys + TILE - 1) / TILE, head = blockIdx.x / tiles;
    I key = blockIdx.x % tiles * TILE, chunk = (I)blockIdx.y * WIDTH;
    const T* from_q = q + q_at(head);
    const T* from_k = k + k_at(head);
    const T* from_v = v + v_at(head);
    const T* from_g = g + g_at(head);
    u32 row = threadIdx.x / 16 * MICRO, column = threadIdx.x % 16 * MICRO;
    A dk_sums[MICRO][EM], dv_sums[MICRO][EM];
    clear(dk_sums);
    clear(dv_sums);
    // The first query that sees a key of the tile.
    I first = CAUSAL && key + (I)queries > (I)keys ? key + (I)queries - (I)keys : 0;
    for (I query = first / TILE * TILE; query < (I)queries; query += TILE) {
        A p[MICRO][MICRO], dp[MICRO][MICRO];
        tile_product<true, true>(p, left, right, (I)0, (I)depth,
            [&](u32 i, I d) { return key + i < (I)keys ? widen(from_k[(key + i) * K_ROW + d * K_COLUMN]) : (A)0; },
            [&](I d, u32 j) {
                return query + j < (I)queries ? widen(from_q[(query + j) * Q_ROW + d * Q_COLUMN]) : (A)0;
            });
        tile_product<true, true>(dp, left, right, (I)0, (I)values,
            [&](u32 i, I e) { return key + i < (I)keys ? widen(from_v[(key + i) * V_ROW + e * V_COLUMN]) : (A)0; },
            [&](I e, u32 j) {
                return query + j < (I)queries ? widen(from_g[(query + j) * G_ROW + e * G_COLUMN]) : (A)0;
            });
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) {
            I at = query + column + j;
            bool is_query = at < (I)queries;
            I limit = is_query ? visible(at, (I)queries, (I)keys) : 0;
            A log_sum = is_query ? lse[lse_at(head * (I)queries + at)] : (A)0;
            A share = is_query ? delta[head * (I)queries + at] : (A)0;
            #pragma unroll
            for (int i = 0; i < MICRO; ++i) {
                p[i][j] *= (A)scale;
                score_gradient(&p[i][j], &dp[i][j], key + row + i < limit, log_sum, share);
            }
        }
        put(tile, p);
        __syncthreads();
        add_product(dv_sums, tile, right, (I)queries - query, [&](u32 j, u32 e) {
            return chunk + e < (I)values ? widen(from_g[(query + j) * G_ROW + (chunk + e) * G_COLUMN]) : (A)0;
        });
        put(tile, dp);
        __syncthreads();
        add_product(dk_sums, tile, right, (I)queries - query, [&](u32 j, u32 d) {
            return chunk + d < (I)depth ? widen(from_q[(query + j) * Q_ROW + (chunk + d) * Q_COLUMN]) : (A)0;
        });
    }
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < EM; ++j) {
            I at = key + row + i, c = chunk + threadIdx.x % 16 * EM + j;
            if (at >= (I)keys) continue;
            if (c < (I)depth) dk[(head * (I)keys + at) * (I)depth + c] = narrow<T>(dk_sums[i][j] * (A)scale);
            if (c < (I)values) dv[(head * (I)keys + at) * (I)values + c] = narrow<T>(dv_sums[i][j]);
        }
    }
}

#endif
