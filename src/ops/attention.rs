//! Scaled dot-product attention; the score matrix is never stored.

use super::Number;

/// Operands (q: [b, h, t, d], k: [b, h, s, d], v: [b, h, s, e]) → (o: [b, h, t, e], lse: f32 or f64
/// [b, h, t]). With `causal`, query i sees keys j ≤ i + (s − t). A query that sees nothing gives
/// 0s.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attention {
    pub causal: bool,
    pub scale: Number,
}

/// Operands (q, k, v, o, lse, g) → (dq, dk, dv).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionGrad {
    pub causal: bool,
    pub scale: Number,
}

crate::ops::scaffold!(Attention, AttentionGrad);
