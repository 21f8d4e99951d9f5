//! Order and effects: barriers, state writes, debug prints.

use std::sync::Arc;

use super::{Alias, GradNode, Gradient, Layout, Memory, OpError, Operation, expect_args};
use crate::ir::{Graph, RegionId, SlotId, Type};

/// What a barrier is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarrierKind {
    /// Written in the source, or its gradient.
    User,
    /// Where the backward pass enters a checkpoint region; made by the gradient with the cotangents
    /// of the region's values, completed with the saved inputs by lowering.
    Region(RegionId),
    /// Inside a region: before the step back to the layer before.
    StepBack,
    /// A region's barrier after lowering, with the saved inputs among its operands.
    Recompute,
}

/// Returns its operands. Nothing that uses a result may start before every operand, and every node
/// in its `after` list, is complete. Nothing is merged, moved or copied through it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Barrier {
    pub kind: BarrierKind,
}

/// Commits a new value of a persistent tensor; the result is the new value. It happens after every
/// reader of the old one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    pub slot: SlotId,
}

/// Shows a value while the step runs, in source order; the result is the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Print {
    pub label: Arc<str>,
}

impl Operation for Barrier {
    fn name(&self) -> &'static str {
        "barrier"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        Ok(args.iter().map(|&t| t.clone()).collect())
    }

    /// A barrier of the cotangents that exist, so that the backward pass keeps the order too.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let places: Vec<usize> =
            (0..at.args.len()).filter(|&k| at.wants(k) && at.cotangent(k).is_some()).collect();
        let bound: Vec<_> = places.iter().filter_map(|&k| at.cotangent(k)).collect();
        let mut cotangents = vec![None; at.args.len()];
        if !bound.is_empty() {
            let barrier = graph.push(Barrier { kind: BarrierKind::User }, &bound)?;
            for (i, &place) in places.iter().enumerate() {
                if let Some(cotangent) = cotangents.get_mut(place) {
                    *cotangent = Some(graph.node(barrier).result(i));
                }
            }
        }
        Ok(Gradient::Args(cotangents))
    }

    fn memory(&self) -> Memory {
        Memory { alias: Alias::Each, overwrites: Vec::new(), strided: true, effect: true }
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn attributes(&self) -> String {
        match self.kind {
            BarrierKind::User => "kind=user".to_owned(),
            BarrierKind::Region(r) => format!("kind=region({})", r.0),
            BarrierKind::StepBack => "kind=step_back".to_owned(),
            BarrierKind::Recompute => "kind=recompute".to_owned(),
        }
    }
}

impl Operation for Write {
    fn name(&self) -> &'static str {
        "write"
    }

    fn infer(&self, graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [value] = expect_args(self.name(), args)?;
        let Some(slot) = graph.slots.get(self.slot.0 as usize) else {
            return Err(OpError::new(format!(
                "internal: `write` to slot {} that does not exist",
                self.slot.0
            )));
        };
        if slot.ty != *value {
            return Err(OpError::new(format!(
                "`{}` holds {}, so {value} cannot be written to it",
                slot.name, slot.ty
            )));
        }
        Ok(vec![value.clone()])
    }

    /// The result is the operand: later reads in the step pass their gradient on to it. None flows
    /// into the next step.
    fn grad(&self, _graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Args(vec![at.cotangent(0)]))
    }

    fn memory(&self) -> Memory {
        Memory { effect: true, ..Memory::VIEW }
    }

    fn view(&self, operand: &Layout, _operand_type: &Type, _result_type: &Type) -> Option<Layout> {
        Some(operand.clone())
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn attributes(&self) -> String {
        format!("slot={}", self.slot.0)
    }
}

impl Operation for Print {
    fn name(&self) -> &'static str {
        "print"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [value] = expect_args(self.name(), args)?;
        Ok(vec![value.clone()])
    }

    fn grad(&self, _graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Args(vec![at.cotangent(0)]))
    }

    fn memory(&self) -> Memory {
        Memory { effect: true, ..Memory::VIEW }
    }

    fn view(&self, operand: &Layout, _operand_type: &Type, _result_type: &Type) -> Option<Layout> {
        Some(operand.clone())
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn attributes(&self) -> String {
        format!("label={:?}", self.label)
    }
}
