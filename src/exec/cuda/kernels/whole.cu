// Whole numbers wrap; division and remainder round down, and have answers for every pair.

template <class T> struct Whole;
template <> struct Whole<int> { typedef u32 wrapping; };
template <> struct Whole<i64> { typedef u64 wrapping; };
template <> struct Whole<u8> { typedef u32 wrapping; };

template <class T> __device__ inline bool is_negative(T a) { return a < (T)0; }
__device__ inline bool is_negative(u8) { return false; }

template <class T> __device__ inline T whole_add(T a, T b) {
    typedef typename Whole<T>::wrapping W;
    return (T)((W)a + (W)b);
}
template <class T> __device__ inline T whole_sub(T a, T b) {
    typedef typename Whole<T>::wrapping W;
    return (T)((W)a - (W)b);
}
template <class T> __device__ inline T whole_mul(T a, T b) {
    typedef typename Whole<T>::wrapping W;
    return (T)((W)a * (W)b);
}
template <class T> __device__ inline T whole_neg(T a) { return whole_sub((T)0, a); }
template <class T> __device__ inline T whole_abs(T a) { return is_negative(a) ? whole_neg(a) : a; }
template <class T> __device__ inline T whole_sign(T a) {
    return a > (T)0 ? (T)1 : is_negative(a) ? whole_neg((T)1) : (T)0;
}
template <class T> __device__ inline T whole_relu(T a) { return is_negative(a) ? (T)0 : a; }

// −1 is apart: the least number divided by it is no number of the type.
template <class T> __device__ inline T whole_floor_div(T a, T b) {
    if (b == (T)0) return (T)0;
    if (is_negative(b) && whole_neg(b) == (T)1) return whole_neg(a);
    T quotient = (T)(a / b), rest = (T)(a % b);
    return rest != (T)0 && is_negative(rest) != is_negative(b) ? whole_sub(quotient, (T)1) : quotient;
}
template <class T> __device__ inline T whole_floor_rem(T a, T b) {
    if (b == (T)0) return a;
    if (is_negative(b) && whole_neg(b) == (T)1) return (T)0;
    T rest = (T)(a % b);
    return rest != (T)0 && is_negative(rest) != is_negative(b) ? whole_add(rest, b) : rest;
}

// With a negative exponent, 1/xⁿ rounded towards 0 (and 0 for x = 0).
template <class T> __device__ inline T whole_pow(T a, T b) {
    if (is_negative(b)) {
        if (a == (T)1) return (T)1;
        if (is_negative(a) && whole_neg(a) == (T)1) return b % 2 == 0 ? (T)1 : a;
        return (T)0;
    }
    T base = a, product = (T)1;
    for (T exponent = b; exponent != (T)0; exponent = (T)(exponent / 2)) {
        if (exponent % 2 != 0) product = whole_mul(product, base);
        base = whole_mul(base, base);
    }
    return product;
}

// From floating point: truncates and saturates, NaN gives 0.
template <class F> __device__ inline int to_i32(F x) {
    if (x != x) return 0;
    if (x >= (F)2147483648.0) return 2147483647;
    return x <= (F)-2147483648.0 ? -2147483647 - 1 : (int)x;
}
template <class F> __device__ inline i64 to_i64(F x) {
    if (x != x) return 0;
    if (x >= (F)9223372036854775808.0) return 9223372036854775807ll;
    return x <= (F)-9223372036854775808.0 ? -9223372036854775807ll - 1 : (i64)x;
}
template <class F> __device__ inline u8 to_u8(F x) {
    return x != x || x <= (F)0 ? (u8)0 : x >= (F)255 ? (u8)255 : (u8)x;
}
