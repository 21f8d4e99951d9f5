//! Matrix products.

/// `[…, m, k] @ […, k, n] -> […, m, n]`: operands of the same rank, at least 2, with the same
/// leading axes (broadcasting and products with vectors are made of views before). Any strides.
/// Accumulates f16 and bf16 in f32; k = 0 gives zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatMul;

crate::ops::scaffold!(MatMul);
