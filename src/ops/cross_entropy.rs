//! Cross-entropy of logits against class numbers.

use super::{
    GradNode, Gradient, Memory, OpError, Operation, ReduceKind, Unary, expect_args, expect_float,
    network::{expect_index, expect_type, fault},
};
use crate::{
    exec::cpu::{Call, nn},
    ir::{Graph, Type, ValueId},
};

/// Operands (logits: [n, classes], labels: int [n]) → (loss: [n], log: f32 or f64 [n]). The loss is
/// log Σ exp(logits) − logits[label]: +∞ where the label's logit is −∞. A label outside the classes
/// is an error at run time. A row that is −∞ throughout has no gradient.
///
/// `log` is log Σ exp(logits − the largest logit). The sum with the largest logit would round it away
/// where logits are large. The largest logit counts as a constant: no value depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropy;

/// Operands (logits, labels, log, g: [n]) → (softmax(logits) − onehot(labels))·g, where the softmax is
/// exp(logits − the largest logit − log).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CrossEntropyGrad;

/// The types of the loss and of the logarithms.
fn result_types(name: &str, logits: &Type, labels: &Type, args: &[&Type]) -> Result<(Type, Type), OpError> {
    if !logits.dtype().is_float() && labels.dtype().is_float() {
        let message =
            format!("`{name}` takes the logits first and the labels second, got {logits} and {labels}");
        return Err(OpError::new(message).help("swap the two: `cross_entropy(logits, labels)`"));
    }
    expect_float(name, logits)?;
    expect_index(name, "labels", labels, args)?;
    let (&[rows, _], &[count]) = (logits.shape(), labels.shape()) else {
        return Err(fault(name, args, "the logits must have two axes and the labels one"));
    };
    if rows != count {
        return Err(fault(name, args, format!("{rows} rows of logits, but {count} labels")));
    }
    let loss = logits.with_shape([rows])?;
    let log = loss.with_dtype(loss.dtype().accumulator())?;
    Ok((loss, log))
}

impl Operation for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [logits, labels] = expect_args(self.name(), args)?;
        let (loss, log) = result_types(self.name(), logits, labels, args)?;
        Ok(vec![loss, log])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (logits, labels, log) = (at.arg(0)?, at.arg(1)?, at.result(1)?);
        let through_loss = match at.cotangent(0) {
            Some(g) => Some(graph.value(CrossEntropyGrad, &[logits, labels, log, g])?),
            None => None,
        };
        // The logarithm has a cotangent only in second gradients.
        let through_log = match at.cotangent(1) {
            Some(g) => {
                let p = probabilities(graph, logits, log)?;
                let g = graph.along_last(g, p)?;
                let dx = graph.mul(p, g)?;
                let dtype = graph.ty(logits).dtype();
                Some(graph.cast(dx, dtype)?)
            }
            None => None,
        };
        let dx = match (through_loss, through_log) {
            (Some(a), Some(b)) => Some(graph.add(a, b)?),
            (a, b) => a.or(b),
        };
        Ok(Gradient::Args(vec![dx, None]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[logits, labels] = args else {
            return Err(OpError::new("internal: `cross_entropy` takes 2 operands"));
        };
        let dtype = graph.ty(logits).dtype();
        let x = graph.widen(logits)?;
        let (shift, log) = graph.log_sum_exp_parts(x)?;
        let hit = graph.is_label(labels, x)?;
        let zero = graph.splat_like(x, 0.0)?;
        let picked = graph.select(hit, x, zero)?;
        let picked = graph.reduce_last(ReduceKind::Sum, picked)?;
        let loss = graph.sub(shift, picked)?;
        let loss = graph.add(loss, log)?;
        let masked = graph.equals(log, f64::NEG_INFINITY)?;
        let loss = graph.replace(masked, f64::INFINITY, loss)?;
        Ok(vec![graph.cast(loss, dtype)?, log])
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 4.0 * x.elements() as f64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::cross_entropy::cross_entropy(call)
    }
}

/// The softmax in the accumulator's type; 0 in rows that are masked throughout.
fn probabilities(graph: &mut Graph, logits: ValueId, log: ValueId) -> Result<ValueId, OpError> {
    let x = graph.widen(logits)?;
    let shift = graph.fixed_row_shift(x)?;
    let shift = graph.along_last(shift, x)?;
    let masked = graph.equals(log, f64::NEG_INFINITY)?;
    let log = graph.replace(masked, 0.0, log)?;
    let log = graph.along_last(log, x)?;
    let shifted = graph.sub(x, shift)?;
    let shifted = graph.sub(shifted, log)?;
    graph.unary(Unary::Exp, shifted)
}

impl Operation for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross_entropy_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [logits, labels, log, g] = expect_args(self.name(), args)?;
        let (loss, log_type) = result_types(self.name(), logits, labels, args)?;
        expect_type(self.name(), args, log, &log_type)?;
        expect_type(self.name(), args, g, &loss)?;
        Ok(vec![logits.clone()])
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Decompose)
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[logits, labels, log, g] = args else {
            return Err(OpError::new("internal: `cross_entropy_grad` takes 4 operands"));
        };
        let dtype = graph.ty(logits).dtype();
        let p = probabilities(graph, logits, log)?;
        let hit = graph.is_label(labels, p)?;
        let one_hot = {
            let wide = graph.ty(p).dtype();
            graph.cast(hit, wide)?
        };
        let difference = graph.sub(p, one_hot)?;
        let g = graph.widen(g)?;
        let g = graph.along_last(g, p)?;
        let dx = graph.mul(difference, g)?;
        let masked = graph.equals(log, f64::NEG_INFINITY)?;
        let masked = graph.along_last(masked, dx)?;
        let dx = graph.replace(masked, 0.0, dx)?;
        Ok(vec![graph.cast(dx, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|t| 3.0 * t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::cross_entropy::cross_entropy_grad(call)
    }
}
