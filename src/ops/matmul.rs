//! Matrix products.

use super::{GradNode, Gradient, Memory, OpError, Operation, ReduceKind};
use crate::{
    exec::cpu::{Call, matmul},
    ir::{DType, Graph, Type},
};

/// `[…, m, k] @ […, k, n] -> […, m, n]`: operands of the same rank, at least 2, with the same
/// leading axes (broadcasting and products with vectors are made of views before). Any strides.
/// Accumulates f16 and bf16 in f32; k = 0 gives zeros.
///
/// A product of two matrices may have a third operand, the bias: `[n]` is added to each row of the
/// sums before these are rounded to the dtype. f32 and f64 are what they are summed in: there it is
/// the product and then the sum, to the bit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatMul;

impl Operation for MatMul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let &[a, b, ref bias @ ..] = args else {
            return Err(OpError::new("internal: `matmul` takes 2 or 3 operands"));
        };
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
        let result = a.with_shape(shape)?;
        match *bias {
            [] => {}
            [bias] if result.rank() == 2 && bias.dtype() == a.dtype() && bias.shape() == [*n] => {}
            [bias] => {
                return Err(fault(&format!(
                    "a bias goes with two matrices and is {}[{n}], not {bias}",
                    a.dtype()
                )));
            }
            _ => return Err(OpError::new("internal: `matmul` takes 2 or 3 operands")),
        }
        Ok(vec![result])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let mut cotangents = vec![None; at.args.len()];
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(cotangents)) };
        let (a, b) = (at.arg(0)?, at.arg(1)?);
        if !graph.ty(a).dtype().is_float() {
            return Ok(Gradient::Zero);
        }
        if let [da, db, of_bias @ ..] = cotangents.as_mut_slice() {
            if let [of_bias] = of_bias
                && at.wants(2)
            {
                *of_bias = Some(graph.reduce(ReduceKind::Sum, g, &[0])?);
            }
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
        let per_element = 2.0 * k as f64 + args.len().saturating_sub(2) as f64;
        results.iter().map(|t| t.elements() as f64 * per_element).sum()
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        match args {
            [a, b, ..] => matmul::workspace(a, b),
            _ => 0,
        }
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        matmul::run(call)
    }
}
