// Matrix products of whole numbers, and of layouts that the library of products does not take. Strides are
// in elements; A_ALONG and B_ALONG say whether terms of a sum lie beside each other, HAS_BIAS whether a bias is
// added to each row of the sums.

typedef Wide<T>::type A;
TILE_TEXT

extern "C" __global__ void matmul(
    const T* a, const T* b, const T* bias, T* c, i64 m, i64 n, i64 k,
    i64 a_row, i64 a_column, i64 b_row, i64 b_column, i64 c_row, i64 c_column, i64 bias_step
) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * (TILE + PAD)];
    I across = ((I)n + TILE - 1) / TILE, down = ((I)m + TILE - 1) / TILE;
    I batch = blockIdx.x / (across * down), square = blockIdx.x % (across * down);
    I row = square / across * TILE, column = square % across * TILE;
    const T* from_a = a + a_batch_at(batch);
    const T* from_b = b + b_batch_at(batch);
    A sums[MICRO][MICRO];
    tile_product<A_ALONG, B_ALONG>(sums, left, right, 0, (I)k,
        [&](u32 i, I term) {
            return row + i < (I)m ? widen(from_a[(row + i) * (I)a_row + term * (I)a_column]) : (A)0;
        },
        [&](I term, u32 j) {
            return column + j < (I)n ? widen(from_b[term * (I)b_row + (column + j) * (I)b_column]) : (A)0;
        });
    T* to = c + c_batch_at(batch);
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) {
            I r = row + threadIdx.x / 16 * MICRO + i, s = column + threadIdx.x % 16 * MICRO + j;
            if (r < (I)m && s < (I)n) {
                if (HAS_BIAS) sums[i][j] = multiply_add((A)1, widen(bias[s * (I)bias_step]), sums[i][j]);
                to[r * (I)c_row + s * (I)c_column] = narrow<T>(sums[i][j]);
            }
        }
    }
}
