// Types and conversions that every kernel may use. Portable CUDA C: no headers, no inline assembly.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct boolean { u8 bits; };

__device__ inline float bits_f32(u32 bits) { union { u32 from; float to; } u; u.from = bits; return u.to; }
__device__ inline u32 f32_bits(float x) { union { float from; u32 to; } u; u.from = x; return u.to; }
__device__ inline double bits_f64(u64 bits) { union { u64 from; double to; } u; u.from = bits; return u.to; }

__device__ inline bool is_nan(float x) { return x != x; }
__device__ inline bool is_nan(double x) { return x != x; }

__device__ inline float f16_to_f32(u16 h) {
    u32 magnitude = h & 0x7fffu, sign = (u32)(h & 0x8000u) << 16;
    // The exponent is 112 too small; the multiplication also makes denormals normal.
    u32 scaled = f32_bits(bits_f32(magnitude << 13) * bits_f32((127u + 112u) << 23));
    u32 special = 0x7f800000u | (magnitude << 13);
    if (magnitude > 0x7c00u) special |= 0x00400000u;
    return bits_f32(sign | (magnitude >= 0x7c00u ? special : scaled));
}

// To the nearest, ties to even.
__device__ inline u16 f32_to_f16(float x) {
    u32 bits = f32_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    u32 half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    // Adding 1/2 moves the last bit of a denormal to the last bit of the sum.
    if (magnitude < 0x38800000u) half = f32_bits(bits_f32(magnitude) + 0.5f) - f32_bits(0.5f);
    if (magnitude >= 0x477ff000u) half = 0x7c00u;
    if (magnitude > 0x7f800000u) half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    return (u16)(sign | half);
}

__device__ inline float bf16_to_f32(u16 h) { return bits_f32((u32)h << 16); }

__device__ inline u16 f32_to_bf16(float x) {
    u32 bits = f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (u16)((bits >> 16) | 0x40u);
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// To an f32 from which rounding to a half gives what rounding x itself would: cut off, with the last
// bit set where anything was lost.
__device__ inline float f64_to_f32_odd(double x) {
    float nearest = (float)x;
    double back = nearest;
    if (back == x || x != x) return nearest;
    u32 bits = f32_bits(nearest);
    return bits_f32((fabs(back) > fabs(x) ? bits - 1u : bits) | 1u);
}

__device__ inline float round_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
__device__ inline float round_bf16(float x) { return bf16_to_f32(f32_to_bf16(x)); }

// What elements are computed and summed in.
template <class T> struct Wide { typedef T type; };
template <> struct Wide<f16> { typedef float type; };
template <> struct Wide<bf16> { typedef float type; };
template <> struct Wide<boolean> { typedef u8 type; };

template <class T> __device__ inline T widen(T x) { return x; }
__device__ inline float widen(f16 x) { return f16_to_f32(x.bits); }
__device__ inline float widen(bf16 x) { return bf16_to_f32(x.bits); }
__device__ inline u8 widen(boolean x) { return x.bits; }

template <class T> struct Narrow {
    static __device__ inline T from(T x) { return x; }
};
template <> struct Narrow<f16> {
    static __device__ inline f16 from(float x) { f16 y; y.bits = f32_to_f16(x); return y; }
};
template <> struct Narrow<bf16> {
    static __device__ inline bf16 from(float x) { bf16 y; y.bits = f32_to_bf16(x); return y; }
};
template <> struct Narrow<boolean> {
    static __device__ inline boolean from(u8 x) { boolean y; y.bits = x != 0; return y; }
};
template <class T> __device__ inline T narrow(typename Wide<T>::type x) { return Narrow<T>::from(x); }

// Four elements that are loaded and stored at once.
template <class T> struct alignas(sizeof(T) > 4 ? 16 : 4 * sizeof(T)) Pack { T v[4]; };

__device__ inline float infinity(float) { return bits_f32(0x7f800000u); }
__device__ inline double infinity(double) { return bits_f64(0x7ff0000000000000ull); }
