// Products of tiles in shared memory, by a block of 256 threads as 16 × 16. A is the type of sums; MICRO squared
// is what a thread computes of a tile with 16·MICRO rows and columns.

#define TILE (16 * MICRO)
// Rows of tiles are longer by this, so that they start in different banks.
#define PAD 4
// Terms of a sum that are in shared memory at a time.
#define STEP 16

__device__ inline float multiply_add(float a, float b, float sum) { return fmaf(a, b, sum); }
__device__ inline double multiply_add(double a, double b, double sum) { return fma(a, b, sum); }
__device__ inline int multiply_add(int a, int b, int sum) { return (int)((u32)a * (u32)b + (u32)sum); }
__device__ inline i64 multiply_add(i64 a, i64 b, i64 sum) { return (i64)((u64)a * (u64)b + (u64)sum); }
__device__ inline u8 multiply_add(u8 a, u8 b, u8 sum) { return (u8)((u32)a * b + sum); }

// sums[i][j] += Σ left[k][row + i]·right[k][column + j], for rows of LEFT and RIGHT elements.
template <int R, int C, int LEFT, int RIGHT>
__device__ inline void multiply(A (&sums)[R][C], const A* left, const A* right) {
    u32 row = threadIdx.x / 16 * R, column = threadIdx.x % 16 * C;
    #pragma unroll
    for (int k = 0; k < STEP; ++k) {
        A l[R], r[C];
        #pragma unroll
        for (int i = 0; i < R; ++i) l[i] = left[k * LEFT + row + i];
        #pragma unroll
        for (int j = 0; j < C; ++j) r[j] = right[k * RIGHT + column + j];
        #pragma unroll
        for (int i = 0; i < R; ++i) {
            #pragma unroll
            for (int j = 0; j < C; ++j) sums[i][j] = multiply_add(l[i], r[j], sums[i][j]);
        }
    }
}

template <int R, int C> __device__ inline void clear(A (&sums)[R][C]) {
    #pragma unroll
    for (int i = 0; i < R; ++i) {
        #pragma unroll
        for (int j = 0; j < C; ++j) sums[i][j] = (A)0;
    }
}

// Puts value(k, place) for k < STEP and place < WIDTH into a tile with rows of WIDTH + PAD elements. ALONG_K:
// threads beside each other take terms beside each other, else places.
template <int WIDTH, bool ALONG_K, class F> __device__ inline void fill(A* tile, F value) {
    for (u32 index = threadIdx.x; index < STEP * WIDTH; index += 256) {
        u32 k = ALONG_K ? index % STEP : index / WIDTH, place = ALONG_K ? index / STEP : index % WIDTH;
        tile[k * (WIDTH + PAD) + place] = value(k, place);
    }
}

// The sums over k from `first` to `end` of left(row, k)·right(k, column), for a tile.
template <bool LEFT_ALONG_K, bool RIGHT_ALONG_K, class F, class G>
__device__ inline void tile_product(A (&sums)[MICRO][MICRO], A* left_tile, A* right_tile, I first, I end, F left, G right) {
    clear(sums);
    for (I start = first; start < end; start += STEP) {
        fill<TILE, LEFT_ALONG_K>(left_tile, [&](u32 k, u32 row) {
            return start + k < end ? left(row, start + k) : (A)0;
        });
        fill<TILE, RIGHT_ALONG_K>(right_tile, [&](u32 k, u32 column) {
            return start + k < end ? right(start + k, column) : (A)0;
        });
        __syncthreads();
        multiply<MICRO, MICRO, TILE + PAD, TILE + PAD>(sums, left_tile, right_tile);
        __syncthreads();
    }
}
