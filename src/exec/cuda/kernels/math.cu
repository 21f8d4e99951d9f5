// Elementary functions. For f32 the polynomials of the CPU's kernels, with the same roundings, so that
// results are the same bits; for f64 the ones of the device's library.

__device__ inline float power_of_two(int n) { return bits_f32((u32)(n + 127) << 23); }

// Added and subtracted, rounds to a whole number; the sum's last bits are that number.
#define ROUNDING 12582912.0f

__device__ inline float exp_of(float x) {
    // Beyond these the result is infinite or 0; NaN passes both comparisons.
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float sum = fmaf(x, 1.44269504088896340736f, ROUNDING);
    float n = sum - ROUNDING;
    float r = fmaf(n, -0.6933594f, x);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 5.0e-1f);
    float y = fmaf(p * r, r, r) + 1.0f;
    // In two steps: 2ⁿ alone may be below or above the normal numbers.
    int whole = (int)(f32_bits(sum) - f32_bits(ROUNDING));
    int half = whole >> 1;
    return y * power_of_two(half) * power_of_two(whole - half);
}

__device__ inline float log_of(float x) {
    bool small = x < 1.17549435e-38f;
    float scaled = small ? x * 8388608.0f : x;
    // The mantissa in [√½, √2), the exponent to match.
    int shifted = (int)(f32_bits(scaled) - 0x3f3504f3u);
    int exponent = (shifted >> 23) - (small ? 23 : 0);
    float m = bits_f32((u32)(shifted & 0x007fffff) + 0x3f3504f3u);
    float e = (float)exponent;
    float t = m - 1.0f;
    float z = t * t;
    float p = 7.0376836e-2f;
    p = fmaf(p, t, -1.151461e-1f);
    p = fmaf(p, t, 1.1676999e-1f);
    p = fmaf(p, t, -1.2420141e-1f);
    p = fmaf(p, t, 1.4249323e-1f);
    p = fmaf(p, t, -1.6668057e-1f);
    p = fmaf(p, t, 2.0000714e-1f);
    p = fmaf(p, t, -2.4999994e-1f);
    p = fmaf(p, t, 3.333333e-1f);
    float y = fmaf(p * t, z, e * -2.1219444e-4f);
    y = fmaf(z, -0.5f, y);
    y = fmaf(e, 0.6933594f, t + y);
    if (x > 0.0f) return x == infinity(0.0f) ? x : y;
    return x == 0.0f ? -infinity(0.0f) : bits_f32(0x7fc00000u);
}

__device__ inline float log1p_of(float x) {
    float sum = 1.0f + x;
    // What rounding 1 + x lost, to first order.
    float lost = (x - (sum - 1.0f)) / sum;
    if (sum == 1.0f) return x;
    return sum > 0.0f && sum < infinity(0.0f) ? log_of(sum) + lost : log_of(sum);
}

__device__ inline float expm1_of(float x) {
    float p = 1.0f / 362880.0f;
    p = fmaf(p, x, 1.0f / 40320.0f);
    p = fmaf(p, x, 1.0f / 5040.0f);
    p = fmaf(p, x, 1.0f / 720.0f);
    p = fmaf(p, x, 1.0f / 120.0f);
    p = fmaf(p, x, 1.0f / 24.0f);
    p = fmaf(p, x, 1.0f / 6.0f);
    p = fmaf(p, x, 0.5f);
    float near = fmaf(p * x, x, x);
    return x > -0.5f && x < 0.5f ? near : exp_of(x) - 1.0f;
}

// Sine and cosine of the argument reduced to |r| ≤ π/4; gives the quadrant.
__device__ inline u32 reduced_sin_cos(float x, float* sine, float* cosine) {
    float sum = fmaf(x, 0.636619772367581343f, ROUNDING);
    float n = sum - ROUNDING;
    // π/2 in three parts, so that n times the first two loses nothing.
    float r = fmaf(n, -1.57079632679489661923f, x);
    r = fmaf(n, 4.371139e-8f, r);
    r = fmaf(n, 1.715129e-15f, r);
    float z = r * r;
    float p = -1.9515296e-4f;
    p = fmaf(p, z, 8.332161e-3f);
    p = fmaf(p, z, -1.6666655e-1f);
    *sine = fmaf(p * z, r, r);
    float q = 2.4433157e-5f;
    q = fmaf(q, z, -1.3887316e-3f);
    q = fmaf(q, z, 4.1666646e-2f);
    *cosine = fmaf(q * z, z, fmaf(z, -0.5f, 1.0f));
    return f32_bits(sum);
}

__device__ inline float near_sin(float x) {
    float sine, cosine;
    u32 quadrant = reduced_sin_cos(x, &sine, &cosine);
    return bits_f32(f32_bits((quadrant & 1u) == 0u ? sine : cosine) ^ ((quadrant & 2u) << 30));
}

__device__ inline float near_cos(float x) {
    float sine, cosine;
    u32 quadrant = reduced_sin_cos(x, &sine, &cosine);
    return bits_f32(f32_bits((quadrant & 1u) == 0u ? cosine : sine) ^ (((quadrant + 1u) & 2u) << 30));
}

// The short reduction is exact enough up to here; through f64 it is for all others.
__device__ inline float sin_of(float x) { return fabsf(x) <= 8192.0f ? near_sin(x) : (float)sin((double)x); }
__device__ inline float cos_of(float x) { return fabsf(x) <= 8192.0f ? near_cos(x) : (float)cos((double)x); }

__device__ inline float tanh_of(float x) {
    float z = x * x;
    float p = -5.7049887e-3f;
    p = fmaf(p, z, 2.063909e-2f);
    p = fmaf(p, z, -5.3739716e-2f);
    p = fmaf(p, z, 1.3331442e-1f);
    p = fmaf(p, z, -3.333328e-1f);
    float near = fmaf(p * z, x, x);
    float far = 1.0f - 2.0f / (exp_of(2.0f * x) + 1.0f);
    return fabsf(x) < 0.625f ? near : far;
}

__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + exp_of(-x)); }
__device__ inline float silu_of(float x) { return x / (1.0f + exp_of(-x)); }

__device__ inline float gelu_of(float x) {
    // 2·√(2/π)
    float u = x * fmaf(x * x, 0.044715f, 1.0f) * 1.5957691216057308f;
    return x / (1.0f + exp_of(-u));
}

__device__ inline float erf_of(float x) {
    float a = fabsf(x), z = x * x;
    float p = 7.8538614e-5f;
    p = fmaf(p, z, -8.0101936e-4f);
    p = fmaf(p, z, 5.1883277e-3f);
    p = fmaf(p, z, -2.6853812e-2f);
    p = fmaf(p, z, 1.1283585e-1f);
    p = fmaf(p, z, -3.7612626e-1f);
    p = fmaf(p, z, 1.12837916709551257390f);
    float near = x * p;
    float q = 1.0f / a, y = q * q;
    float middle = 2.32682e-2f;
    middle = fmaf(middle, y, -1.3870394e-1f);
    middle = fmaf(middle, y, 3.6874247e-1f);
    middle = fmaf(middle, y, -5.824733e-1f);
    middle = fmaf(middle, y, 6.2100046e-1f);
    middle = fmaf(middle, y, -4.9445153e-1f);
    middle = fmaf(middle, y, 3.40488e-1f);
    middle = fmaf(middle, y, -2.741127e-1f);
    middle = fmaf(middle, y, 5.6382594e-1f);
    float outer = -1.0477664e1f;
    outer = fmaf(outer, y, 1.29772e1f);
    outer = fmaf(outer, y, -7.495519f);
    outer = fmaf(outer, y, 2.921019f);
    outer = fmaf(outer, y, -1.0152653f);
    outer = fmaf(outer, y, 4.2184634e-1f);
    outer = fmaf(outer, y, -2.8207674e-1f);
    outer = fmaf(outer, y, 5.641895e-1f);
    float rest = exp_of(-z) * q * (a < 2.0f ? middle : outer);
    float far = a < 10.0f || is_nan(x) ? 1.0f - rest : 1.0f;
    return a < 1.0f ? near : copysignf(far, x);
}

__device__ inline float sqrt_of(float x) { return sqrtf(x); }
__device__ inline float floor_of(float x) { return floorf(x); }
__device__ inline float ceil_of(float x) { return ceilf(x); }
__device__ inline float round_of(float x) { return rintf(x); }
__device__ inline float abs_of(float x) { return fabsf(x); }
__device__ inline float pow_of(float x, float y) { return powf(x, y); }
__device__ inline float rem_of(float x, float y) { return fmodf(x, y); }

__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline double log_of(double x) { return log(x); }
__device__ inline double log1p_of(double x) { return log1p(x); }
__device__ inline double expm1_of(double x) { return expm1(x); }
__device__ inline double sin_of(double x) { return sin(x); }
__device__ inline double cos_of(double x) { return cos(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline double sigmoid_of(double x) { return 1.0 / (1.0 + exp(-x)); }
__device__ inline double silu_of(double x) { return x / (1.0 + exp(-x)); }
__device__ inline double gelu_of(double x) {
    double u = 2.0 * sqrt(0.63661977236758134308) * x * (1.0 + 0.044715 * x * x);
    return x / (1.0 + exp(-u));
}
__device__ inline double erf_of(double x) { return erf(x); }
__device__ inline double sqrt_of(double x) { return sqrt(x); }
__device__ inline double floor_of(double x) { return floor(x); }
__device__ inline double ceil_of(double x) { return ceil(x); }
__device__ inline double round_of(double x) { return rint(x); }
__device__ inline double abs_of(double x) { return fabs(x); }
__device__ inline double pow_of(double x, double y) { return pow(x, y); }
__device__ inline double rem_of(double x, double y) { return fmod(x, y); }

template <class T> __device__ inline T neg_of(T x) { return -x; }
template <class T> __device__ inline T rsqrt_of(T x) { return (T)1 / sqrt_of(x); }
template <class T> __device__ inline T recip_of(T x) { return (T)1 / x; }
// 1, −1, or the operand where it is 0 or NaN.
template <class T> __device__ inline T sign_of(T x) { return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x; }
template <class T> __device__ inline T relu_of(T x) { return x > (T)0 || x != x ? x : (T)0; }
template <class T> __device__ inline T max_of(T a, T b) { return a > b || a != a ? a : b; }
template <class T> __device__ inline T min_of(T a, T b) { return a < b || a != a ? a : b; }

// The remainder with the sign of b.
template <class T> __device__ inline T floor_rem(T a, T b) {
    T rest = rem_of(a, b);
    return rest != (T)0 && (rest < (T)0) != (b < (T)0) ? rest + b : rest;
}

// The quotient that belongs to it; of a division by 0, what `/` gives.
template <class T> __device__ inline T floor_div(T a, T b) {
    bool finite_a = a - a == (T)0, finite_b = b - b == (T)0;
    if (b == (T)0) return a / b;
    if (finite_a && !finite_b && !is_nan(b)) return sign_of(a) * sign_of(b) < (T)0 ? (T)-1 : (T)0;
    return round_of((a - floor_rem(a, b)) / b);
}
