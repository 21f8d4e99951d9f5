//! A value that no gradient passes.

use super::{GradNode, Gradient, Layout, Memory, OpError, Operation, expect_args};
use crate::ir::{Graph, Type};

/// The operand itself, as a view; no gradient goes through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StopGrad;

impl Operation for StopGrad {
    fn name(&self) -> &'static str {
        "stop_grad"
    }

    fn infer(&self, _: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args("stop_grad", args)?;
        Ok(vec![x.clone()])
    }

    fn grad(&self, _: &mut Graph, _: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Zero)
    }

    fn memory(&self) -> Memory {
        Memory::VIEW
    }

    fn view(&self, operand: &Layout, _: &Type, _: &Type) -> Option<Layout> {
        Some(operand.clone())
    }

    fn flops(&self, _: &[&Type], _: &[&Type]) -> f64 {
        0.0
    }
}
