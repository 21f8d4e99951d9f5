//! Collectives between ranks, as pairs of start and done: what they read and make is alive in
//! between.

use super::{GradNode, Gradient, Layout, Memory, OpError, Operation, expect_args};
use crate::{
    exec::cpu::{Call, movement},
    ir::{DType, Graph, Type, ValueId},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Sum over ranks.
    AllReduce,
    /// Concatenates along axis 0.
    AllGather,
    /// Sum over ranks; rank r keeps part r of axis 0.
    ReduceScatter,
    /// The value of rank 0.
    Broadcast,
    /// The sum over ranks on rank 0, zeros on the others: the transpose of a broadcast.
    Reduce,
}

/// Starts a collective over `world` ranks; the result has the type of the finished collective.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveStart {
    pub kind: CollectiveKind,
    pub world: u32,
}

/// Waits for it: operands are the start's result and its operand (kept alive until here).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CollectiveDone {
    pub kind: CollectiveKind,
    pub world: u32,
}

impl CollectiveKind {
    /// As the language names it.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "rank_reduce",
        }
    }

    /// The type of the finished collective for an operand of this type on each of `world` ranks.
    fn result(self, name: &str, world: u32, operand: &Type) -> Result<Type, OpError> {
        if world == 0 {
            return Err(OpError::new(format!("`{name}` needs at least one rank")));
        }
        if operand.dtype() == DType::Bool
            && matches!(
                self,
                CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce
            )
        {
            return Err(OpError::new(format!("`{name}` cannot sum {operand}"))
                .help("convert it first: `i32(x)` counts the ranks where it is true"));
        }
        let mut shape = operand.shape().to_vec();
        match (self, shape.first_mut()) {
            (CollectiveKind::AllReduce | CollectiveKind::Broadcast | CollectiveKind::Reduce, _) => {}
            (_, None) => {
                return Err(OpError::new(format!("`{name}` works along axis 0, got a scalar {operand}"))
                    .help("`reshape(x, [1])` gives it one"));
            }
            (CollectiveKind::AllGather, Some(rows)) => {
                *rows = rows.checked_mul(world as usize).ok_or_else(|| {
                    OpError::new(format!("`{name}` of {operand} over {world} ranks is too large"))
                })?;
            }
            (CollectiveKind::ReduceScatter, Some(rows)) => {
                if *rows % world as usize != 0 {
                    return Err(OpError::new(format!(
                        "`{name}` of {operand}: axis 0 does not divide into {world} equal parts"
                    )));
                }
                *rows /= world as usize;
            }
        }
        Ok(operand.with_shape(shape)?)
    }
}

impl Operation for CollectiveStart {
    fn name(&self) -> &'static str {
        match self.kind {
            CollectiveKind::AllReduce => "all_reduce_start",
            CollectiveKind::AllGather => "all_gather_start",
            CollectiveKind::ReduceScatter => "reduce_scatter_start",
            CollectiveKind::Broadcast => "rank_broadcast_start",
            CollectiveKind::Reduce => "rank_reduce_start",
        }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [operand] = expect_args(self.name(), args)?;
        Ok(vec![self.kind.result(self.kind.name(), self.world, operand)?])
    }

    /// The loss of the program is the sum of the losses of its ranks, so the transpose of a sum
    /// over ranks is a sum over ranks again, and that of a gather a reduce-scatter. Only rank 0's
    /// operand matters to a broadcast: its gradient is the sum on rank 0 and zero elsewhere.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let kind = match self.kind {
            CollectiveKind::AllReduce => CollectiveKind::AllReduce,
            CollectiveKind::AllGather => CollectiveKind::ReduceScatter,
            CollectiveKind::ReduceScatter => CollectiveKind::AllGather,
            CollectiveKind::Broadcast => CollectiveKind::Reduce,
            CollectiveKind::Reduce => CollectiveKind::Broadcast,
        };
        Ok(Gradient::Args(vec![Some(graph.collective(kind, self.world, g)?)]))
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        match self.kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce => {
                args.iter().map(|t| t.elements() as f64).sum()
            }
            CollectiveKind::AllGather | CollectiveKind::Broadcast => 0.0,
        }
    }

    /// With one rank every collective is a copy. Several ranks need an engine that connects them.
    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        if self.world != 1 {
            return Err(OpError::new(format!(
                "`{}` over {} ranks cannot run in one rank",
                self.name(),
                self.world
            )));
        }
        movement::copy(call)
    }

    fn attributes(&self) -> String {
        format!("world={}", self.world)
    }
}

impl Operation for CollectiveDone {
    fn name(&self) -> &'static str {
        match self.kind {
            CollectiveKind::AllReduce => "all_reduce_done",
            CollectiveKind::AllGather => "all_gather_done",
            CollectiveKind::ReduceScatter => "reduce_scatter_done",
            CollectiveKind::Broadcast => "rank_broadcast_done",
            CollectiveKind::Reduce => "rank_reduce_done",
        }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [started, operand] = expect_args(self.name(), args)?;
        let expected = self.kind.result(self.kind.name(), self.world, operand)?;
        if *started != expected {
            return Err(OpError::new(format!(
                "internal: `{}` of {operand} makes {expected}, but {started} was started",
                self.name()
            )));
        }
        Ok(vec![expected])
    }

    /// Passes the cotangent to the start, which holds the collective of the backward pass. The
    /// second operand is only kept alive.
    fn grad(&self, _graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Args(vec![at.cotangent(0), None]))
    }

    fn memory(&self) -> Memory {
        Memory::VIEW
    }

    fn view(&self, operand: &Layout, _operand_type: &Type, _result_type: &Type) -> Option<Layout> {
        Some(operand.clone())
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn attributes(&self) -> String {
        format!("world={}", self.world)
    }
}

impl Graph {
    /// Starts a collective and waits for it at once.
    pub fn collective(&mut self, kind: CollectiveKind, world: u32, x: ValueId) -> Result<ValueId, OpError> {
        let started = self.value(CollectiveStart { kind, world }, &[x])?;
        self.value(CollectiveDone { kind, world }, &[started, x])
    }
}
