//! One place that decides which instructions kernels are compiled for.
//!
//! A kernel's body is `#[inline(always)]`, so it is compiled once for the baseline and once for
//! AVX2 with FMA. Both give the same bits: Rust never contracts `a * b + c`, and `mul_add`, where a
//! kernel asks for it, is exact in both.

/// A kernel of one argument.
pub(crate) trait Kernel1<A, R> {
    fn run(self, a: A) -> R;
}

/// A kernel of two arguments.
pub(crate) trait Kernel2<A, B> {
    fn run(self, a: A, b: B);
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[inline]
pub(crate) fn dispatch1<A, R, K: Kernel1<A, R>>(kernel: K, a: A) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn avx2<A, R, K: Kernel1<A, R>>(kernel: K, a: A) -> R {
            kernel.run(a)
        }
        if has_avx2() {
            // SAFETY: the processor has the features.
            return unsafe { avx2(kernel, a) };
        }
    }
    kernel.run(a)
}

#[inline]
pub(crate) fn dispatch2<A, B, K: Kernel2<A, B>>(kernel: K, a: A, b: B) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn avx2<A, B, K: Kernel2<A, B>>(kernel: K, a: A, b: B) {
            kernel.run(a, b);
        }
        if has_avx2() {
            // SAFETY: the processor has the features.
            return unsafe { avx2(kernel, a, b) };
        }
    }
    kernel.run(a, b);
}
