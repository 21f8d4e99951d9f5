// Convolution of half types and its gradients by tensor cores. A block makes a tile of BM by BN results from tiles
// of its operands in shared memory; each of its warps, two above each other, has BM / 2 by 32 of them. Terms of
// sums come in units of 16: with BY_TAP those that one tap sees of 16 channels, for all taps before the next
// channels; else any 16 in the order of the weights.
// Beside the sizes of the convolution BM, BN and BY_TAP are defined, GRADIENT (1 for that of the input), WEIGHTS (1
// for that of the weights), and UNITS. With SKIPS, a tile has places of the input that have one remainder by the
// stride: they are seen by some of the taps, every TAP_STEP_H-th and TAP_STEP_W-th, and others are left out.

typedef float A;

#define TAPS (KERNEL_H * KERNEL_W)
#define TERMS (INPUTS * TAPS)
#define PLANE (INPUT_H * INPUT_W)
#define PIXELS (OUTPUT_H * OUTPUT_W)

#define THREADS (2 * BN)
#define WARPS (THREADS / 32)
#define STEP 32
// Words of a row of a tile, with STEP halves: rows start in different banks.
#define WORDS (STEP / 2 + 4)

#if IS_F16 || !defined(__CUDA_ARCH_SOFTWARE__) && __CUDA_ARCH__ >= 800
#define TENSOR_CORES 1
#else
#define TENSOR_CORES 0
#endif

typedef float Sums[BM / 32][4][4];

__device__ inline void clear_sums(Sums& sums) {
    #pragma unroll
    for (int m = 0; m < BM / 32; ++m) {
        #pragma unroll
        for (int n = 0; n < 4; ++n) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.0f;
    }
}

// The first row and column of this warp in its tile.
__device__ inline u32 warp_row() { return threadIdx.x / 32 % 2 * (BM / 2); }
__device__ inline u32 warp_column() { return threadIdx.x / 64 * 32; }

// Sum k of `sums[m][n]` is in this row and column of the tile.
__device__ inline u32 row_of(int m, int k) { return warp_row() + m * 16 + k / 2 * 8 + threadIdx.x % 32 / 4; }
__device__ inline u32 column_of(int n, int k) { return warp_column() + n * 8 + threadIdx.x % 4 * 2 + k % 2; }

// sums += left · right over the terms of a step; rows of `right` are columns of the product.
__device__ inline void add_products(Sums& sums, const u32* left, const u32* right) {
#if TENSOR_CORES
    u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    #pragma unroll
    for (int step = 0; step < STEP / 16; ++step) {
        u32 b[4][2];
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            const u32* row = right + (warp_column() + n * 8 + g) * WORDS + step * 8 + t;
            b[n][0] = row[0];
            b[n][1] = row[4];
        }
        #pragma unroll
        for (int m = 0; m < BM / 32; ++m) {
            const u32* row = left + (warp_row() + m * 16 + g) * WORDS + step * 8 + t;
            u32 a[4] = {row[0], row[8 * WORDS], row[4], row[8 * WORDS + 4]};
            #pragma unroll
            for (int n = 0; n < 4; ++n) mma(sums[m][n], a, b[n][0], b[n][1]);
        }
    }
#else
    // These devices have no tensor cores for the type.
    #pragma unroll 1
    for (int word = 0; word < STEP / 2; ++word) {
        u32 b[4][2];
        #pragma unroll
        for (int n = 0; n < 4; ++n) {
            b[n][0] = right[column_of(n, 0) * WORDS + word];
            b[n][1] = right[column_of(n, 1) * WORDS + word];
        }
        #pragma unroll
        for (int m = 0; m < BM / 32; ++m) {
            #pragma unroll
            for (int k = 0; k < 4; ++k) {
                u32 a = left[row_of(m, k) * WORDS + word];
                #pragma unroll
                for (int n = 0; n < 4; ++n) {
                    sums[m][n][k] = fmaf(half_of(a, 0), half_of(b[n][k % 2], 0), sums[m][n][k]);
                    sums[m][n][k] = fmaf(half_of(a, 1), half_of(b[n][k % 2], 1), sums[m][n][k]);
                }
            }
        }
    }
#endif
}

// Where in its plane the input that a tap sees for an output pixel is; false for the padding. y and x are the
// first that the pixel sees, with the padding.
__device__ inline bool sees(I tap, I y, I x, I& place) {
    // Places before the input wrap around to beyond it.
    y += tap / KERNEL_W * DILATION_H - PADDING_H;
    x += tap % KERNEL_W * DILATION_W - PADDING_W;
    place = y * INPUT_W + x;
    return y < INPUT_H && x < INPUT_W;
}

// Where in its plane the output pixel is that sees a place of the input by a tap; false if none does. y and x are
// the place, with the padding.
__device__ inline bool seen(I tap, I y, I x, I& place) {
    I down = tap / KERNEL_W * DILATION_H, right = tap % KERNEL_W * DILATION_W;
    if (y < down || x < right) return false;
    y -= down;
    x -= right;
    place = y / STRIDE_H * OUTPUT_W + x / STRIDE_W;
    return y % STRIDE_H == 0 && x % STRIDE_W == 0 && y / STRIDE_H < OUTPUT_H && x / STRIDE_W < OUTPUT_W;
}

#if WEIGHTS

// dw[o, term] = Σ g[o, p]·x[term, p] over the pixels of all images, in segments that are summed apart. Lanes have
// pixels beside each other, warps rows of g and one unit of terms.
extern "C" __global__ void conv_grad_weight(const T* x, const T* g, T* dw, A* partial, i64 images, i64 segments) {
    __shared__ __align__(16) u32 left[2 * BM * WORDS];
    __shared__ __align__(16) u32 right[2 * BN * WORDS];
    I across = (UNITS + BN / 16 - 1) / (BN / 16), down = (OUTPUTS + BM - 1) / BM, number = blockIdx.x;
    I row = number % down * BM, column = number / down % across * BN;
    I group = number / (down * across) % GROUPS, segment = number / (down * across) / GROUPS;
    I count = (I)images * PIXELS, steps = (count + STEP - 1) / STEP;
    // Whole steps, so that segments are nearly equal.
    I first = (I)((u64)steps * segment / (u64)segments), end = (I)((u64)steps * (segment + 1) / (u64)segments);
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    I unit = column / 16 + warp;
    u16 next_left[BM / WARPS], next_right[16];
    auto fetch = [&](I step) {
        I at = step * STEP + lane, image = at / PIXELS, pixel = at % PIXELS;
        const T* from = g + ((image * GROUPS + group) * OUTPUTS + row + warp) * PIXELS + pixel;
        #pragma unroll
        for (int k = 0; k < BM / WARPS; ++k) {
            bool is_there = at < count && row + warp + k * WARPS < OUTPUTS;
            next_left[k] = is_there ? from[k * WARPS * PIXELS].bits : 0;
        }
        I place, top = pixel / OUTPUT_W * STRIDE_H, side = pixel % OUTPUT_W * STRIDE_W;
        const T* planes = x + (image * GROUPS + group) * INPUTS * PLANE;
#if BY_TAP
        bool is_there = sees(unit % TAPS, top, side, place) && at < count && unit < UNITS;
        I channel = unit / TAPS * 16;
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
            bool is_channel = INPUTS % 16 == 0 || channel + k < INPUTS;
            next_right[k] = is_there && is_channel ? planes[(channel + k) * PLANE + place].bits : 0;
        }
#else
        #pragma unroll
        for (int k = 0; k < 16; ++k) {
            I term = unit * 16 + k;
            bool is_there = sees(term % TAPS, top, side, place) && at < count && term < TERMS;
            next_right[k] = is_there ? planes[term / TAPS * PLANE + place].bits : 0;
        }
#endif
    };
    auto put = [&](I step) {
        u16* to_left = (u16*)(left + step % 2 * (BM * WORDS)) + lane;
        u16* to_right = (u16*)(right + step % 2 * (BN * WORDS)) + lane;
        #pragma unroll
        for (int k = 0; k < BM / WARPS; ++k) to_left[(warp + k * WARPS) * (2 * WORDS)] = next_left[k];
        #pragma unroll
        for (int k = 0; k < 16; ++k) to_right[(warp * 16 + k) * (2 * WORDS)] = next_right[k];
    };
    Sums sums;
    clear_sums(sums);
    if (first < end) {
        fetch(first);
        put(first);
    }
    __syncthreads();
    #pragma unroll 1
    for (I step = first; step < end; ++step) {
        // What comes next is on its way while this is multiplied.
        if (step + 1 < end) fetch(step + 1);
        add_products(sums, left + step % 2 * (BM * WORDS), right + step % 2 * (BN * WORDS));
        if (step + 1 < end) put(step + 1);
        __syncthreads();
    }
    #pragma unroll
    for (int n = 0; n < 4; ++n) {
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            I at = column + column_of(n, k);
#if BY_TAP
            I channel = at / 16 / TAPS * 16 + at % 16, term = channel * TAPS + at / 16 % TAPS;
            bool is_term = at / 16 < UNITS && channel < INPUTS;
#else
            I term = at;
            bool is_term = term < TERMS;
#endif
            #pragma unroll
            for (int m = 0; m < BM / 32; ++m) {
                I o = row + row_of(m, k);
                if (o >= OUTPUTS || !is_term) continue;
                I to = (group * OUTPUTS + o) * TERMS + term;
                if (segments == 1) dw[to] = narrow<T>(sums[m][n][k]);
                else partial[segment * (GROUPS * OUTPUTS * TERMS) + to] = sums[m][n][k];
            }
        }
    }
}

#else

// Results with ROWS channels in planes of TO from CHANNELS in planes of FROM.
#if GRADIENT
#define ROWS INPUTS
#define CHANNELS OUTPUTS
#define TO PLANE
#define FROM PIXELS
#else
#define ROWS OUTPUTS
#define CHANNELS INPUTS
#define TO PIXELS
#define FROM PLANE
#endif

// Terms of a row of packed weights: whole steps.
#define PACKED ((UNITS + 1) / 2 * STEP)

struct alignas(16) Eight { u32 words[4]; };

// The weights by rows of results, with terms in the order in which they are summed; 0 beyond the last.
extern "C" __global__ void conv_pack(const T* w, T* packed) {
    I index = (I)blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= GROUPS * ROWS * PACKED) return;
    I k = index % PACKED, row = index / PACKED % ROWS, group = index / PACKED / ROWS;
#if BY_TAP
    I channel = k / 16 / TAPS * 16 + k % 16, tap = k / 16 % TAPS;
#else
    I channel = k / TAPS, tap = k % TAPS;
#endif
    T value;
    value.bits = 0;
    if (channel < CHANNELS) {
        I output = GRADIENT ? channel : row, input = GRADIENT ? row : channel;
        value = w[((group * OUTPUTS + output) * INPUTS + input) * TAPS + tap];
    }
    packed[index] = value;
}

// The columns of a tile: places in planes of TO, all of them or those of one remainder.
struct Columns {
#if SKIPS
    // The first place of an image, and how many there are below and beside it.
    I top, side, high, wide;
    // The first tap that sees them, and how many do.
    I tap_y, tap_x, taps_y, taps_x;
#endif
    I first, count;
};

#if SKIPS

// The first tap with a remainder by the stride; KERNEL or more if there is none.
__device__ inline I first_tap(I remainder, I stride, I dilation, I step, I kernel) {
    for (I tap = 0; tap < step; ++tap) {
        if (tap * dilation % stride == remainder) return tap;
    }
    return kernel;
}

// Tile `tile` of those of all remainders.
__device__ inline Columns columns_of(I tile, I images) {
    Columns result;
    for (I remainder = 0; remainder < STRIDE_H * STRIDE_W; ++remainder) {
        I below = remainder / STRIDE_W, beside = remainder % STRIDE_W;
        result.top = (below + STRIDE_H - PADDING_H % STRIDE_H) % STRIDE_H;
        result.side = (beside + STRIDE_W - PADDING_W % STRIDE_W) % STRIDE_W;
        result.high = (INPUT_H + STRIDE_H - 1 - result.top) / STRIDE_H;
        result.wide = (INPUT_W + STRIDE_W - 1 - result.side) / STRIDE_W;
        result.count = images * result.high * result.wide;
        I tiles = (result.count + BN - 1) / BN;
        if (tile >= tiles) {
            tile -= tiles;
            continue;
        }
        result.tap_y = first_tap(below, STRIDE_H, DILATION_H, TAP_STEP_H, KERNEL_H);
        result.tap_x = first_tap(beside, STRIDE_W, DILATION_W, TAP_STEP_W, KERNEL_W);
        result.taps_y = result.tap_y < KERNEL_H ? (KERNEL_H - result.tap_y + TAP_STEP_H - 1) / TAP_STEP_H : 0;
        result.taps_x = result.tap_x < KERNEL_W ? (KERNEL_W - result.tap_x + TAP_STEP_W - 1) / TAP_STEP_W : 0;
        result.first = tile * BN;
        break;
    }
    return result;
}

__device__ inline void locate(const Columns& columns, I at, I& image, I& place) {
    I inside = at % (columns.high * columns.wide);
    image = at / (columns.high * columns.wide);
    place = (columns.top + inside / columns.wide * STRIDE_H) * INPUT_W + columns.side + inside % columns.wide * STRIDE_W;
}

__device__ inline I steps_of(const Columns& columns) {
    return ((CHANNELS + 15) / 16 * columns.taps_y * columns.taps_x + 1) / 2;
}

// Goes through the units of terms, two at a time.
struct Cursor {
    I channel, y, x;
    __device__ inline void one(const Columns& columns) {
        if (++x < columns.taps_x) return;
        x = 0;
        if (++y < columns.taps_y) return;
        y = 0;
        channel += 16;
    }
    __device__ inline Cursor(const Columns& columns, u32 number) : channel(0), y(0), x(0) {
        if (number > 0) one(columns);
    }
    __device__ inline void next(const Columns& columns) {
        one(columns);
        one(columns);
    }
    __device__ inline bool is_there() const { return channel < CHANNELS; }
    __device__ inline I first_channel() const { return channel; }
    __device__ inline I tap(const Columns& columns) const {
        return (columns.tap_y + y * TAP_STEP_H) * KERNEL_W + columns.tap_x + x * TAP_STEP_W;
    }
    // Where the unit is among the packed weights of a row.
    __device__ inline I packed(const Columns& columns) const { return channel * TAPS + tap(columns) * 16; }
};

#else

__device__ inline Columns columns_of(I tile, I images) {
    Columns result;
    result.first = tile * BN;
    result.count = images * TO;
    return result;
}

__device__ inline void locate(const Columns&, I at, I& image, I& place) {
    image = at / TO;
    place = at % TO;
}

__device__ inline I steps_of(const Columns&) { return PACKED / STEP; }

// Goes through the units of terms, two at a time.
struct Cursor {
    I number;
    __device__ inline Cursor(const Columns&, u32 number) : number(number) {}
    __device__ inline void next(const Columns&) { number += 2; }
    // Packed weights have a unit of zeros behind the last.
    __device__ inline bool is_there() const { return number < UNITS; }
    __device__ inline I first_channel() const { return number / TAPS * 16; }
    __device__ inline I tap(const Columns&) const { return number % TAPS; }
    __device__ inline I packed(const Columns&) const { return number * 16; }
};

#endif

#if GRADIENT
#define FIND seen
#else
#define FIND sees
#endif

// The terms of a unit for a column, whose place is (y, x), with the padding.
__device__ inline void gather(
    u32 (&words)[8], const T* planes, bool is_column, const Columns& columns, const Cursor& unit, I y, I x
) {
    auto half = [&](bool is_there, I channel, I place) {
        return is_there ? (u32)planes[channel * FROM + place].bits : 0u;
    };
#if BY_TAP
    I place, channel = unit.first_channel();
    bool is_there = is_column && unit.is_there() && FIND(unit.tap(columns), y, x, place);
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
        bool has_low = CHANNELS % 16 == 0 || channel + 2 * k < CHANNELS;
        bool has_high = CHANNELS % 16 == 0 || channel + 2 * k + 1 < CHANNELS;
        u32 low = half(is_there && has_low, channel + 2 * k, place);
        words[k] = low | half(is_there && has_high, channel + 2 * k + 1, place) << 16;
    }
#else
    #pragma unroll
    for (int k = 0; k < 8; ++k) {
        u32 pair[2];
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            I term = unit.packed(columns) + 2 * k + j, place;
            bool is_there = is_column && term < CHANNELS * TAPS && FIND(term % TAPS, y, x, place);
            pair[j] = half(is_there, term / TAPS, place);
        }
        words[k] = pair[0] | pair[1] << 16;
    }
#endif
}

// to[row, p] = Σ packed[row, term]·from[term, p] (+ bias[row]); the places of all images are the columns, in `across`
// tiles. A thread has a column and every second unit of its terms.
__device__ inline void make_tile(
    u32* left, u32* right, u32 number, const T* from, const T* packed, const T* bias, T* to, i64 images, i64 across
) {
    I down = (ROWS + BM - 1) / BM;
    // Blocks beside each other see the same places.
    I row = number % down * BM, group = number / down / (I)across;
    Columns columns = columns_of(number / down % (I)across, (I)images);
    u32 mine = threadIdx.x % BN, second = threadIdx.x / BN;
    I image, place, at = columns.first + mine;
    locate(columns, at, image, place);
#if GRADIENT
    I y = place / INPUT_W + PADDING_H, x = place % INPUT_W + PADDING_W;
#else
    I y = place / OUTPUT_W * STRIDE_H, x = place % OUTPUT_W * STRIDE_W;
#endif
    const T* planes = from + (image * GROUPS + group) * CHANNELS * FROM;
    const T* rows = packed + (group * ROWS + row) * PACKED;
    Eight next_left[(BM * 4 + THREADS - 1) / THREADS];
    u32 next_right[8];
    // What this thread reads of the weights, and of the places.
    Cursor of_left(columns, threadIdx.x % 4 / 2), of_right(columns, second);
    auto fetch = [&]() {
        gather(next_right, planes, at < columns.count, columns, of_right, y, x);
        #pragma unroll
        for (int k = 0; k * THREADS < BM * 4; ++k) {
            u32 index = threadIdx.x + k * THREADS;
            bool is_there = index < BM * 4 && row + index / 4 < ROWS && of_left.is_there();
            const T* weights = rows + index / 4 * PACKED + of_left.packed(columns) + index % 2 * 8;
            next_left[k] = is_there ? *(const Eight*)weights : Eight{};
        }
        of_left.next(columns);
        of_right.next(columns);
    };
    auto put = [&](I step) {
        Eight* to_right = (Eight*)(right + step % 2 * (BN * WORDS) + mine * WORDS + second * 8);
        to_right[0] = Eight{{next_right[0], next_right[1], next_right[2], next_right[3]}};
        to_right[1] = Eight{{next_right[4], next_right[5], next_right[6], next_right[7]}};
        #pragma unroll
        for (int k = 0; k * THREADS < BM * 4; ++k) {
            u32 index = threadIdx.x + k * THREADS;
            if (index >= BM * 4) continue;
            *(Eight*)(left + step % 2 * (BM * WORDS) + index / 4 * WORDS + index % 4 * 4) = next_left[k];
        }
    };
    Sums sums;
    clear_sums(sums);
    I steps = steps_of(columns);
    // There are none where no tap sees the places.
    if (steps > 0) {
        fetch();
        put(0);
    }
    __syncthreads();
    #pragma unroll 1
    for (I step = 0; step < steps; ++step) {
        // What comes next is on its way while this is multiplied.
        if (step + 1 < steps) fetch();
        add_products(sums, left + step % 2 * (BM * WORDS), right + step % 2 * (BN * WORDS));
        if (step + 1 < steps) put(step + 1);
        __syncthreads();
    }
    #pragma unroll
    for (int n = 0; n < 4; ++n) {
        #pragma unroll
        for (int j = 0; j < 2; ++j) {
            I here = columns.first + column_of(n, j), image, place;
            if (here >= columns.count) continue;
            locate(columns, here, image, place);
            T* plane = to + (image * GROUPS + group) * ROWS * TO + place;
            #pragma unroll
            for (int m = 0; m < BM / 32; ++m) {
                #pragma unroll
                for (int half = 0; half < 2; ++half) {
                    I r = row + row_of(m, 2 * half);
                    if (r >= ROWS) continue;
                    float sum = sums[m][n][2 * half + j];
                    if (HAS_BIAS) sum += widen(bias[group * ROWS + r]);
                    plane[r * TO] = narrow<T>(sum);
                }
            }
        }
    }
}

#if GRADIENT

extern "C" __global__ void conv_grad_input(const T* packed, const T* g, T* dx, i64 images, i64 across) {
    __shared__ __align__(16) u32 left[2 * BM * WORDS];
    __shared__ __align__(16) u32 right[2 * BN * WORDS];
    make_tile(left, right, blockIdx.x, g, packed, packed, dx, images, across);
}

#else

extern "C" __global__ void conv(const T* x, const T* packed, const T* bias, T* y, i64 images, i64 across) {
    __shared__ __align__(16) u32 left[2 * BM * WORDS];
    __shared__ __align__(16) u32 right[2 * BN * WORDS];
    make_tile(left, right, blockIdx.x, x, packed, bias, y, images, across);
}

#endif
#endif
