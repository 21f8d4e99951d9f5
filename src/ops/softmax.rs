//! Softmax over the last axis.

/// A row that is −∞ throughout gives 0s (not NaN), as does its gradient. Over the last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Softmax;

/// Operands (y, g) → y·(g − Σ g·y) over the last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxGrad;

/// x − log Σ exp x over the last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

crate::ops::scaffold!(Softmax, SoftmaxGrad, LogSoftmax);
