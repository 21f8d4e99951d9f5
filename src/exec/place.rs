//! Where the tensors of a plan lie: in the arena or in a persistent tensor, at a layout. Everything
//! that a plan could get wrong about sizes is checked here, once for all devices.

use std::ops::Range;

use super::cpu::RunError;
use crate::{
    ir::{NodeId, Type},
    ops::{Layout, Op, OpError},
    plan::{Access, Home, Plan},
    schedule::{BufferId, OpId},
};

/// Where a buffer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Root {
    /// At this byte of the arena.
    Arena(usize),
    Slot(usize),
}

/// A tensor in a buffer.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub root: Root,
    pub ty: Type,
    pub layout: Layout,
}

pub(crate) fn fault(what: impl std::fmt::Display) -> OpError {
    OpError::new(format!("internal: {what}"))
}

/// Offsets of operands and workspaces must be multiples of this.
const OPERAND_ALIGNMENT: u64 = 64;

/// Checks that every buffer has a place and that inputs fit into theirs.
pub(crate) fn check(plan: &Plan) -> Result<(), OpError> {
    for (k, buffer) in plan.buffers.iter().enumerate() {
        root(plan, BufferId(k as u32))?;
        if let Home::Input(index) = buffer.home {
            let input =
                plan.graph.inputs.get(index as usize).ok_or_else(|| fault("the plan has a missing input"))?;
            if plan.schedule_graph.buffer(BufferId(k as u32)).bytes < input.ty.bytes() {
                return Err(fault("a buffer is smaller than the input in it"));
            }
        }
    }
    Ok(())
}

/// The bytes of the arena that an op's workspace takes.
pub(crate) fn workspace(plan: &Plan, id: OpId) -> Result<Range<usize>, OpError> {
    let planned = plan.schedule_graph.workspace(id);
    let start = plan.schedule.workspace_offsets.get(id.0 as usize).copied().flatten();
    match start {
        _ if planned == 0 => Ok(0..0),
        Some(start)
            if start % OPERAND_ALIGNMENT == 0
                && start.checked_add(planned).is_some_and(|end| end <= plan.schedule.arena_bytes) =>
        {
            Ok(start as usize..(start + planned) as usize)
        }
        _ => Err(fault("a workspace of the plan has no place in the arena")),
    }
}

/// An error where an op needs more workspace than the plan has for it.
pub(crate) fn check_workspace(plan: &Plan, id: OpId, op: &Op, needed: u64) -> Result<(), OpError> {
    let planned = plan.schedule_graph.workspace(id);
    if needed <= planned {
        return Ok(());
    }
    let name = op.name();
    Err(fault(format_args!("`{name}` needs {needed} bytes of workspace, and {planned} are planned")))
}

/// The node that an op is for: what errors of the op are about.
pub(crate) fn node_of(plan: &Plan, id: OpId) -> NodeId {
    plan.op_nodes.get(id.0 as usize).copied().unwrap_or(RunError::NOWHERE)
}

fn root(plan: &Plan, buffer: BufferId) -> Result<Root, OpError> {
    let home =
        plan.buffers.get(buffer.0 as usize).ok_or_else(|| fault("the plan has a missing buffer"))?.home;
    if let Home::Slot(slot) = home {
        return if (slot.0 as usize) < plan.graph.slots.len() {
            Ok(Root::Slot(slot.0 as usize))
        } else {
            Err(fault("the plan has a missing persistent tensor"))
        };
    }
    let offset = plan.schedule.offsets.get(buffer.0 as usize).copied().flatten();
    let bytes = plan.schedule_graph.buffer(buffer).bytes;
    match offset {
        // Nothing is placed for what has no bytes.
        None if bytes == 0 => Ok(Root::Arena(0)),
        Some(offset)
            if offset % OPERAND_ALIGNMENT == 0
                && offset.checked_add(bytes).is_some_and(|end| end <= plan.schedule.arena_bytes) =>
        {
            Ok(Root::Arena(offset as usize))
        }
        _ => Err(fault("a buffer of the plan has no place in the arena")),
    }
}

impl Place {
    pub fn new(plan: &Plan, access: &Access) -> Result<Place, OpError> {
        let root = root(plan, access.buffer)?;
        let room = match root {
            Root::Arena(_) => plan.schedule_graph.buffer(access.buffer).bytes,
            Root::Slot(slot) => plan.graph.slots.get(slot).map_or(0, |slot| slot.ty.bytes()),
        };
        let end =
            reach(&access.ty, &access.layout).ok_or_else(|| fault("a layout of the plan is too large"))?;
        if end > room {
            return Err(fault(format_args!("{} reaches beyond its buffer of {room} bytes", access.ty)));
        }
        Ok(Place { root, ty: access.ty.clone(), layout: access.layout.clone() })
    }
}

/// One past the last byte that a layout reaches.
pub(crate) fn reach(ty: &Type, layout: &Layout) -> Option<u64> {
    if layout.strides.len() != ty.rank() {
        return None;
    }
    if ty.shape().contains(&0) {
        return Some(0);
    }
    let mut last = layout.offset;
    for (&dim, &stride) in ty.shape().iter().zip(&layout.strides) {
        last = last.checked_add((dim - 1).checked_mul(stride)?)?;
    }
    (last as u64).checked_add(1)?.checked_mul(ty.dtype().size() as u64)
}

/// Engines move bytes: what they get is dense.
pub(crate) fn dense_place(plan: &Plan, access: &Access) -> Result<Place, OpError> {
    if access.layout.is_dense(access.ty.shape()) {
        Place::new(plan, access)
    } else {
        Err(fault("a collective of a tensor that is not dense"))
    }
}

/// The end of a collective of several ranks.
#[derive(Debug, Clone)]
pub(crate) struct Wait {
    /// The node that starts it.
    pub start: NodeId,
    pub operand: Place,
    pub result: Place,
}

/// What an op waits for. With one rank a collective is over when it starts: `None`.
pub(crate) fn wait(plan: &Plan, id: OpId, operands: &[Access]) -> Result<Option<Wait>, OpError> {
    let done = plan.op_nodes.get(id.0 as usize).filter(|node| (node.0 as usize) < plan.graph.len());
    let done = plan.graph.node(*done.ok_or_else(|| fault("the plan waits for a missing node"))?);
    let (Op::CollectiveDone(op), [result, operand], Some(&started)) =
        (done.op(), operands, done.args().first())
    else {
        return Err(fault("the plan waits for what is no collective"));
    };
    if op.world == 1 {
        return Ok(None);
    }
    let start = plan.graph.producer(started).0;
    if !matches!(start.op(), Op::CollectiveStart(_)) {
        return Err(fault("the plan waits for a collective that nothing starts"));
    }
    let (operand, result) = (dense_place(plan, operand)?, dense_place(plan, result)?);
    Ok(Some(Wait { start: start.id, operand, result }))
}
