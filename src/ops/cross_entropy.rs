//! Cross-entropy of logits against class numbers.

/// Operands (logits: [n, classes], labels: int [n]) → (loss: [n], lse: f32 or f64 [n]). The loss is
/// lse − logits[label]. A label outside the classes is an error at run time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropy;

/// Operands (logits, labels, lse, g: [n]) → (exp(logits − lse) − onehot(labels))·g.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropyGrad;

crate::ops::scaffold!(CrossEntropy, CrossEntropyGrad);
