// What a kernel in CUDA C needs to be compiled by the host's C++ compiler: the words of the language and
// the functions that NVRTC knows without any header. Included before each kernel, so it includes nothing:
// a kernel that compiles with NVRTC alone compiles here in a few hundredths of a second.
//
// A kernel becomes an ordinary function that is called once for every thread of a block. Where threads
// wait for each other it calls back into the device, which goes on with another thread.
#pragma once

typedef __SIZE_TYPE__ size_t;

struct uint3 { unsigned x, y, z; };
struct int3 { int x, y, z; };
struct float3 { float x, y, z; };
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The part of the device that kernels see. `device.h` has the same structure: keep them equal.
struct SdKernelState {
    uint3 thread, block;
    unsigned block_dim[3], grid_dim[3];
    unsigned lane, lanes;
    char* dynamic_shared;
    void (*barrier)(int line);
    int (*vote)(int what, int predicate, int line);
    void (*warp_barrier)(unsigned mask, int line);
    void (*warp_exchange)(unsigned mask, const void* mine, void* all, size_t bytes, int line);
    void (*trap)(const char* why);
};

extern "C" __attribute__((visibility("default"))) SdKernelState* sd_kernel_state;
// Initialised, so that it lies outside of `.bss`: all of `.bss` is shared memory.
SdKernelState* sd_kernel_state = (SdKernelState*)1;

#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
// `__global__` and `extern __shared__` are left for the stand-in for NVRTC.
#define __CUDA_ARCH_SOFTWARE__ 1
#define __CUDACC_RTC__ 1

#define threadIdx (sd_kernel_state->thread)
#define blockIdx (sd_kernel_state->block)
#define blockDim (*(const dim3*)sd_kernel_state->block_dim)
#define gridDim (*(const dim3*)sd_kernel_state->grid_dim)
#define warpSize 32

#define __syncthreads() sd_kernel_state->barrier(__LINE__)
#define __syncthreads_or(p) sd_kernel_state->vote(0, (p) != 0, __LINE__)
#define __syncthreads_and(p) sd_kernel_state->vote(1, (p) != 0, __LINE__)
#define __syncthreads_count(p) sd_kernel_state->vote(2, (p) != 0, __LINE__)
static inline void __syncwarp(unsigned mask = 0xffffffffu) { sd_kernel_state->warp_barrier(mask, 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __trap() { sd_kernel_state->trap("__trap()"); }
#define assert(condition) ((condition) ? (void)0 : sd_kernel_state->trap("assertion failed: " #condition))

// Values of the lanes of a warp. A lane that does not take part gives its own value back, which is wrong on
// purpose: what a GPU gives there is undefined.
template <class T> static inline T sd_shuffle(unsigned mask, T value, int from, bool inside) {
    T all[32];
    sd_kernel_state->warp_exchange(mask, &value, all, sizeof(T), 0);
    return inside ? all[from] : value;
}
template <class T> static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    int lane = sd_kernel_state->lane, base = lane & ~(width - 1);
    return sd_shuffle(mask, value, base + (from & (width - 1)), true);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = sd_kernel_state->lane, base = lane & ~(width - 1), from = lane + (int)by;
    return sd_shuffle(mask, value, from, from < base + width);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
    int lane = sd_kernel_state->lane, base = lane & ~(width - 1), from = lane - (int)by;
    return sd_shuffle(mask, value, from, from >= base);
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
    int lane = sd_kernel_state->lane, base = lane & ~(width - 1), from = lane ^ with;
    return sd_shuffle(mask, value, from, from < base + width);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
    int mine = predicate != 0, all[32];
    sd_kernel_state->warp_exchange(mask, &mine, all, sizeof mine, 0);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++)
        if ((mask >> lane & 1) && lane < (int)sd_kernel_state->lanes && all[lane]) votes |= 1u << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// One thread runs at a time, so atomic functions are plain ones.
#define SD_ATOMIC(name, result)                                      \
    template <class T> static inline T name(T* at, T value) {        \
        T old = *at;                                                 \
        *at = (result);                                              \
        return old;                                                  \
    }
SD_ATOMIC(atomicAdd, old + value)
SD_ATOMIC(atomicSub, old - value)
SD_ATOMIC(atomicMax, old > value ? old : value)
SD_ATOMIC(atomicMin, old < value ? old : value)
SD_ATOMIC(atomicExch, value)
SD_ATOMIC(atomicOr, old | value)
SD_ATOMIC(atomicAnd, old & value)
SD_ATOMIC(atomicXor, old ^ value)
template <class T> static inline T atomicCAS(T* at, T expected, T value) {
    T old = *at;
    if (old == expected) *at = value;
    return old;
}

#define SD_VECTOR(type, name, align2, align4)                                                   \
    struct __attribute__((aligned(align2))) name##2 { type x, y; };                             \
    struct __attribute__((aligned(align4))) name##4 { type x, y, z, w; };                       \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; }                     \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SD_VECTOR(float, float, 8, 16)
SD_VECTOR(int, int, 8, 16)
SD_VECTOR(unsigned, uint, 8, 16)
SD_VECTOR(short, short, 4, 8)
SD_VECTOR(unsigned short, ushort, 4, 8)
SD_VECTOR(unsigned char, uchar, 2, 4)
SD_VECTOR(double, double, 16, 16)
SD_VECTOR(long long, longlong, 16, 16)
SD_VECTOR(unsigned long long, ulonglong, 16, 16)

// Mathematics, with the overloads that CUDA has.
#define SD_MATH1(name)                                                      \
    extern "C" double name(double) noexcept;                                \
    extern "C" float name##f(float) noexcept;                               \
    static inline float name(float x) { return name##f(x); }
#define SD_MATH2(name)                                                      \
    extern "C" double name(double, double) noexcept;                        \
    extern "C" float name##f(float, float) noexcept;                        \
    static inline float name(float x, float y) { return name##f(x, y); }
SD_MATH1(sqrt) SD_MATH1(exp) SD_MATH1(exp2) SD_MATH1(expm1) SD_MATH1(log) SD_MATH1(log2) SD_MATH1(log10)
SD_MATH1(log1p) SD_MATH1(sin) SD_MATH1(cos) SD_MATH1(tan) SD_MATH1(sinh) SD_MATH1(cosh) SD_MATH1(tanh)
SD_MATH1(asin) SD_MATH1(acos) SD_MATH1(atan) SD_MATH1(erf) SD_MATH1(erfc) SD_MATH1(floor) SD_MATH1(ceil)
SD_MATH1(trunc) SD_MATH1(round) SD_MATH1(rint) SD_MATH1(nearbyint) SD_MATH1(fabs) SD_MATH1(cbrt)
SD_MATH2(pow) SD_MATH2(fmod) SD_MATH2(fmin) SD_MATH2(fmax) SD_MATH2(copysign) SD_MATH2(atan2) SD_MATH2(hypot)
extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
static inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
// Names that are taken there, so that a kernel must not have them.
extern "C" double norm(int, const double*) noexcept;
extern "C" double rnorm(int, const double*) noexcept;
extern "C" double rhypot(double, double) noexcept;
extern "C" double normcdf(double) noexcept;
extern "C" double erfinv(double) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" int abs(int) noexcept;
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline long long abs(long long x) { return x < 0 ? -x : x; }
static inline long long llabs(long long x) { return x < 0 ? -x : x; }
static inline bool isnan(double x) { return __builtin_isnan(x); }
static inline bool isinf(double x) { return __builtin_isinf(x); }
static inline bool isfinite(double x) { return __builtin_isfinite(x); }
static inline bool signbit(double x) { return __builtin_signbit(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }

#define SD_MINMAX(type)                                                          \
    static inline type min(type a, type b) { return a < b ? a : b; }             \
    static inline type max(type a, type b) { return a > b ? a : b; }
SD_MINMAX(int) SD_MINMAX(unsigned) SD_MINMAX(long) SD_MINMAX(unsigned long) SD_MINMAX(long long)
SD_MINMAX(unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __fdividef(float a, float b) { return a / b; }

template <class To, class From> static inline To sd_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) { return sd_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return sd_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return sd_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return sd_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return sd_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return sd_bits<double>(x); }
static inline int __double2hiint(double x) { return (int)(sd_bits<unsigned long long>(x) >> 32); }
static inline int __double2loint(double x) { return (int)sd_bits<unsigned long long>(x); }
static inline double __hiloint2double(int high, int low) {
    return sd_bits<double>((unsigned long long)(unsigned)high << 32 | (unsigned)low);
}
// Conversions to integers saturate and take NaN to zero, as the machine's own do.
template <class To, class From> static inline To sd_to_int(From x, From low, From above, To lowest, To highest) {
    return x != x ? (To)0 : x <= low ? lowest : x >= above ? highest : (To)x;
}
static inline int __float2int_rz(float x) {
    return sd_to_int<int>(x, -2147483648.0f, 2147483648.0f, -2147483647 - 1, 2147483647);
}
static inline int __float2int_rn(float x) { return __float2int_rz(rintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline unsigned __float2uint_rz(float x) { return sd_to_int<unsigned>(x, 0.0f, 4294967296.0f, 0u, 4294967295u); }
static inline int __double2int_rz(double x) {
    return sd_to_int<int>(x, -2147483648.0, 2147483648.0, -2147483647 - 1, 2147483647);
}
static inline long long __float2ll_rz(float x) {
    return sd_to_int<long long>(x, -9223372036854775808.0f, 9223372036854775808.0f, -9223372036854775807LL - 1,
                                9223372036854775807LL);
}
static inline long long __double2ll_rz(double x) {
    return sd_to_int<long long>(x, -9223372036854775808.0, 9223372036854775808.0, -9223372036854775807LL - 1,
                                9223372036854775807LL);
}
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }
static inline double __ll2double_rn(long long x) { return (double)x; }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    by &= 31;
    return by ? high << by | low >> (32 - by) : high;
}
template <class T> static inline T __ldg(const T* at) { return *at; }

// How a launch calls a kernel: the arguments lie behind an array of pointers, with the sizes that the
// kernel's parameters have.
template <class... T> struct SdCall;
template <> struct SdCall<> {
    template <class F, class... Done> static void go(F kernel, void**, Done&... done) { kernel(done...); }
    static void sizes(size_t*) {}
};
template <class T, class... Rest> struct SdCall<T, Rest...> {
    template <class F, class... Done> static void go(F kernel, void** args, Done&... done) {
        SdCall<Rest...>::go(kernel, args + 1, done..., *(T*)*args);
    }
    static void sizes(size_t* sizes) {
        *sizes = sizeof(T);
        SdCall<Rest...>::sizes(sizes + 1);
    }
};
template <class... T> static inline void sd_call(void (*kernel)(T...), void** args) {
    SdCall<T...>::go(kernel, args);
}
template <class... T> static inline int sd_sizes(void (*)(T...), size_t* sizes) {
    SdCall<T...>::sizes(sizes);
    return (int)sizeof...(T);
}
