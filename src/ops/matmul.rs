//! Matrix products.

use super::{GradNode, Gradient, Memory, OpError, Operation, expect_args};
use crate::{
    exec::cpu::{Call, matmul},
    ir::{DType, Graph, Type},
};

/// `[…, m, k] @ […, k, n] -> […, m, n]`: operands of the same rank, at least 2, with the same
/// leading axes (broadcasting and products with vectors are made of views before). Any strides.
/// Accumulates f16 and bf16 in f32; k = 0 gives zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatMul;

impl Operation for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [a, b] = expect_args(self.name(), args)?;
        let fault = |why: &str| OpError::new(format!("`matmul` of {a} and {b}: {why}"));
        if a.dtype() != b.dtype() {
            return Err(
                fault("the element types differ").help(format!("convert one of them: `{}(x)`", a.dtype()))
            );
        }
        if a.dtype() == DType::Bool {
            return Err(fault("bool values have no product").help("convert them first: `f32(x)`"));
        }
        let ([lead_a @ .., m, k], [lead_b @ .., k_b, n]) = (a.shape(), b.shape()) else {
            return Err(fault("both need at least two axes"));
        };
        if k != k_b {
            let error = fault(&format!(
                "the last axis of the first has {k} elements, the second to last of the second {k_b}"
            ));
            let transposed = b.rank() == 2 && n == k;
            return Err(if transposed { error.help("transpose the second: `a @ b.T`") } else { error });
        }
        if lead_a != lead_b {
            return Err(fault("the leading axes differ"));
        }
        let shape: Vec<usize> = lead_a.iter().copied().chain([*m, *n]).collect();
        Ok(vec![a.with_shape(shape)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
        let (a, b) = (at.arg(0)?, at.arg(1)?);
        if !graph.ty(a).dtype().is_float() {
            return Ok(Gradient::Zero);
        }
        let mut cotangents = vec![None, None];
        if let [da, db] = cotangents.as_mut_slice() {
            if at.wants(0) {
                let bt = graph.transpose_last(b)?;
                *da = Some(graph.matmul(g, bt)?);
            }
            if at.wants(1) {
                let a_t = graph.transpose_last(a)?;
                *db = Some(graph.matmul(a_t, g)?);
            }
        }
        Ok(Gradient::Args(cotangents))
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        let k = args.first().and_then(|a| a.shape().last()).copied().unwrap_or(0);
        results.iter().map(|t| 2.0 * t.elements() as f64 * k as f64).sum()
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        match args {
            [a, b] => matmul::workspace(a, b),
            _ => 0,
        }
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        matmul::run(call)
    }
}
