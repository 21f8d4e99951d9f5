// Two-dimensional convolution and its gradients as products of tiles, whose elements are looked up where the
// images lie (implicit columns). The sizes are defined before: GROUPS, INPUTS and OUTPUTS of a group, KERNEL_H, …,
// STRIDE_H, …, PADDING_H, …, DILATION_H, …, INPUT_H, …, OUTPUT_H, ….

typedef Wide<T>::type A;
TILE_TEXT

#define TAPS (KERNEL_H * KERNEL_W)
#define TERMS (INPUTS * TAPS)
#define PLANE (INPUT_H * INPUT_W)
#define PIXELS (OUTPUT_H * OUTPUT_W)

// The input that a tap sees for an output pixel; 0 in the padding. `planes` are the channels of a group.
__device__ inline A seen(const T* planes, I term, I pixel) {
    I tap = term % TAPS;
    I y = pixel / OUTPUT_W * STRIDE_H + tap / KERNEL_W * DILATION_H;
    I x = pixel % OUTPUT_W * STRIDE_W + tap % KERNEL_W * DILATION_W;
    // Places before the input wrap around to beyond it.
    if (y - PADDING_H >= INPUT_H || x - PADDING_W >= INPUT_W) return (A)0;
    return widen(planes[term / TAPS * PLANE + (y - PADDING_H) * INPUT_W + (x - PADDING_W)]);
}

// y[o, p] = Σ w[o, term]·x[term, p] (+ bias[o]); the pixels of all images are the columns.
extern "C" __global__ void conv(const T* x, const T* w, const T* bias, T* y, i64 images) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * (TILE + PAD)];
    I columns = (I)images * PIXELS, across = (columns + TILE - 1) / TILE, down = (OUTPUTS + TILE - 1) / TILE;
    I group = blockIdx.x / (across * down), square = blockIdx.x % (across * down);
    I row = square / across * TILE, column = square % across * TILE;
    const T* weights = w + group * OUTPUTS * TERMS;
    A sums[MICRO][MICRO];
    tile_product<true, false>(sums, left, right, (I)0, TERMS,
        [&](u32 i, I term) { return row + i < OUTPUTS ? widen(weights[(row + i) * TERMS + term]) : (A)0; },
        [&](I term, u32 j) {
            I at = column + j;
            if (at >= columns) return (A)0;
            return seen(x + (at / PIXELS * GROUPS + group) * INPUTS * PLANE, term, at % PIXELS);
        });
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) {
            I o = row + threadIdx.x / 16 * MICRO + i, at = column + threadIdx.x % 16 * MICRO + j;
            if (o >= OUTPUTS || at >= columns) continue;
            A sum = sums[i][j];
            if (HAS_BIAS) sum += widen(bias[group * OUTPUTS + o]);
            y[((at / PIXELS * GROUPS + group) * OUTPUTS + o) * PIXELS + at % PIXELS] = narrow<T>(sum);
        }
    }
}

// dx[c, q] = Σ w[o, c, tap]·g[o, p] over the outputs o and the taps whose pixel p sees the place q.
extern "C" __global__ void conv_grad_input(const T* w, const T* g, T* dx, i64 images) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * (TILE + PAD)];
    I columns = (I)images * PLANE, across = (columns + TILE - 1) / TILE, down = (INPUTS + TILE - 1) / TILE;
    I group = blockIdx.x / (across * down), square = blockIdx.x % (across * down);
    I row = square / across * TILE, column = square % across * TILE;
    const T* weights = w + group * OUTPUTS * TERMS;
    A sums[MICRO][MICRO];
    tile_product<true, false>(sums, left, right, (I)0, OUTPUTS * TAPS,
        [&](u32 i, I term) {
            return row + i < INPUTS ? widen(weights[term / TAPS * TERMS + (row + i) * TAPS + term % TAPS]) : (A)0;
        },
        [&](I term, u32 j) {
            I at = column + j;
            if (at >= columns) return (A)0;
            I place = at % PLANE, tap = term % TAPS;
            I y = place / INPUT_W + PADDING_H, x = place % INPUT_W + PADDING_W;
            I down_by = tap / KERNEL_W * DILATION_H, right_by = tap % KERNEL_W * DILATION_W;
            if (y < down_by || x < right_by) return (A)0;
            y -= down_by;
            x -= right_by;
            if (y % STRIDE_H != 0 || x % STRIDE_W != 0) return (A)0;
            y /= STRIDE_H;
            x /= STRIDE_W;
            if (y >= OUTPUT_H || x >= OUTPUT_W) return (A)0;
            return widen(g[((at / PLANE * GROUPS + group) * OUTPUTS + term / TAPS) * PIXELS + y * OUTPUT_W + x]);
        });
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) {
            I c = row + threadIdx.x / 16 * MICRO + i, at = column + threadIdx.x % 16 * MICRO + j;
            if (c >= INPUTS || at >= columns) continue;
            dx[((at / PLANE * GROUPS + group) * INPUTS + c) * PLANE + at % PLANE] = narrow<T>(sums[i][j]);
        }
    }
}

// dw[o, term] = Σ g[o, p]·x[term, p] over the pixels of all images, in segments that are summed apart.
extern "C" __global__ void conv_grad_weight(const T* x, const T* g, T* dw, A* partial, i64 images, i64 segments) {
    __shared__ A left[STEP * (TILE + PAD)];
    __shared__ A right[STEP * (TILE + PAD)];
    I across = (TERMS + TILE - 1) / TILE, down = (OUTPUTS + TILE - 1) / TILE;
    I block = blockIdx.x % (across * down * GROUPS), segment = blockIdx.x / (across * down * GROUPS);
    I group = block / (across * down), square = block % (across * down);
    I row = square / across * TILE, column = square % across * TILE;
    // Whole steps, so that segments are nearly equal.
    I steps = ((I)images * PIXELS + STEP - 1) / STEP;
    I first = (I)((u64)steps * segment / (u64)segments) * STEP;
    I end = (I)((u64)steps * (segment + 1) / (u64)segments) * STEP;
    if (end > (I)images * PIXELS) end = (I)images * PIXELS;
    A sums[MICRO][MICRO];
    tile_product<true, true>(sums, left, right, first, end,
        [&](u32 i, I at) {
            if (row + i >= OUTPUTS) return (A)0;
            return widen(g[((at / PIXELS * GROUPS + group) * OUTPUTS + row + i) * PIXELS + at % PIXELS]);
        },
        [&](I at, u32 j) {
            if (column + j >= TERMS) return (A)0;
            return seen(x + (at / PIXELS * GROUPS + group) * INPUTS * PLANE, column + j, at % PIXELS);
        });
    #pragma unroll
    for (int i = 0; i < MICRO; ++i) {
        #pragma unroll
        for (int j = 0; j < MICRO; ++j) {
            I o = row + threadIdx.x / 16 * MICRO + i, term = column + threadIdx.x % 16 * MICRO + j;
            if (o >= OUTPUTS || term >= TERMS) continue;
            I at = (group * OUTPUTS + o) * TERMS + term;
            if (segments == 1) dw[at] = narrow<T>(sums[i][j]);
            else partial[segment * (GROUPS * OUTPUTS * TERMS) + at] = sums[i][j];
        }
    }
}
