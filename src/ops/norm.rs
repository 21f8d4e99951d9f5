//! Normalisation with a gradient of its own. Statistics are f32 (f64 for f64 operands).

use super::Number;

/// Operands (x: […, d], w: [d], b: [d]) → (y, mean: […], rstd: […]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    pub eps: Number,
}

/// Operands (x, w, mean, rstd, g) → (dx, dw, db).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerNormGrad;

/// Operands (x: […, d], w: [d]) → (y, rstd: […]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    pub eps: Number,
}

/// Operands (x, w, rstd, g) → (dx, dw).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RmsNormGrad;

/// Over all axes but 1. Operands (x: [n, c, …], w: [c], b: [c]) → (y, mean: [c], variance: [c]); the
/// variance is the biased one. The gradients of `mean` and `variance` as results are supported
/// through the composed form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchNorm {
    pub eps: Number,
}

/// Operands (x, w, mean, variance, g) → (dx, dw, db).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchNormGrad {
    pub eps: Number,
}

crate::ops::scaffold!(LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, BatchNorm, BatchNormGrad);
