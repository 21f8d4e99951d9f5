// Products of 16 × 16 and 16 × 8 matrices of halves by a warp, summed in f32. Lane 4g + t of the warp holds, two
// halves to a word: of the left operand rows g and g + 8 at columns 2t, 2t + 1 (words 0, 1) and 2t + 8, 2t + 9
// (words 2, 3); of the right one column g at rows 2t, 2t + 1 and 2t + 8, 2t + 9; of the sums row g at columns 2t,
// 2t + 1, then row g + 8. HALF_NAME is "f16" or "bf16", IS_F16 is 1 or 0.

#if !defined(__CUDA_ARCH_SOFTWARE__) && __CUDA_ARCH__ >= 800

__device__ inline void mma(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." HALF_NAME "." HALF_NAME ".f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline u32 two_halves(float low, float high) {
    u32 word;
    asm("cvt.rn." HALF_NAME "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

#else

__device__ inline u32 two_halves(float low, float high) {
    return (u32)narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16;
}

#if !defined(__CUDA_ARCH_SOFTWARE__) && IS_F16

// Two products with half the inner length: these devices have no longer ones.
__device__ inline void mma(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
}

#else

__device__ inline float half_of(u32 word, u32 place) {
    T half;
    half.bits = (u16)(word >> (16 * place));
    return widen(half);
}

// Without tensor cores for the type: every lane gets the rows and columns of its sums from the others.
__device__ inline void mma(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    u32 lane = threadIdx.x % 32;
    for (u32 pair = 0; pair < 8; ++pair) {
        int row = (int)(lane / 4 * 4 + pair % 4), column = (int)(lane % 4 * 8 + pair % 4);
        u32 top = __shfl_sync(0xffffffffu, pair < 4 ? a[0] : a[2], row);
        u32 bottom = __shfl_sync(0xffffffffu, pair < 4 ? a[1] : a[3], row);
        u32 left = __shfl_sync(0xffffffffu, pair < 4 ? b0 : b1, column);
        u32 right = __shfl_sync(0xffffffffu, pair < 4 ? b0 : b1, column + 4);
        for (u32 k = 0; k < 2; ++k) {
            sums[0] = fmaf(half_of(top, k), half_of(left, k), sums[0]);
            sums[1] = fmaf(half_of(top, k), half_of(right, k), sums[1]);
            sums[2] = fmaf(half_of(bottom, k), half_of(left, k), sums[2]);
            sums[3] = fmaf(half_of(bottom, k), half_of(right, k), sums[3]);
        }
    }
}

#endif
#endif
