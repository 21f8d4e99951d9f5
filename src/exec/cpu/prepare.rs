//! What an executable knows of each op before the first run: kernels, places, layouts. Everything
//! that a plan could get wrong about sizes is checked here.

use std::{ops::Range, sync::Arc};

use super::elementwise::Program;
use crate::{
    ir::{NodeId, Type},
    ops::{CollectiveKind, Copy, Layout, Op, OpError},
    plan::{Access, Home, Instr, Kernel, Plan},
    schedule::{BufferId, OpId},
};

/// Where a buffer starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Root {
    /// At this byte of the arena.
    Arena(usize),
    Slot(usize),
}

/// A tensor in a buffer.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub root: Root,
    pub ty: Type,
    pub layout: Layout,
}

#[derive(Debug, Clone)]
pub(super) enum Action {
    Nothing,
    Elementwise {
        program: Program,
        inputs: Vec<Place>,
        outputs: Vec<Place>,
    },
    Copy {
        from: Place,
        to: Place,
    },
    Print {
        label: Arc<str>,
        value: Place,
    },
    Node {
        op: Op,
        args: Vec<Place>,
        results: Vec<Place>,
        workspace: Range<usize>,
    },
    /// A collective of several ranks begins; `result` belongs to it until it is waited for.
    Start {
        node: NodeId,
        kind: CollectiveKind,
        world: u32,
        operand: Place,
        result: Place,
    },
    /// The end of the collective that `start` began.
    Wait {
        start: NodeId,
        operand: Place,
        result: Place,
    },
}

impl Action {
    /// Where it writes.
    pub fn written(&self) -> impl Iterator<Item = Root> {
        let places: &[Place] = match self {
            Action::Nothing | Action::Print { .. } | Action::Wait { .. } => &[],
            Action::Elementwise { outputs, .. } => outputs,
            Action::Copy { to, .. } | Action::Start { result: to, .. } => std::slice::from_ref(to),
            Action::Node { results, .. } => results,
        };
        places.iter().map(|place| place.root)
    }
}

fn fault(what: impl std::fmt::Display) -> OpError {
    OpError::new(format!("internal: {what}"))
}

/// Offsets of operands and workspaces must be multiples of this.
const OPERAND_ALIGNMENT: u64 = 64;

pub(super) fn prepare(plan: &Plan) -> Result<Vec<Action>, OpError> {
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
    plan.kernels.iter().enumerate().map(|(k, kernel)| action(plan, OpId(k as u32), kernel)).collect()
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
fn reach(ty: &Type, layout: &Layout) -> Option<u64> {
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

fn action(plan: &Plan, id: OpId, kernel: &Kernel) -> Result<Action, OpError> {
    let place = |access: &Access| Place::new(plan, access);
    let places = |accesses: &[Access]| accesses.iter().map(place).collect::<Result<Vec<Place>, OpError>>();
    Ok(match kernel {
        Kernel::Nothing => Action::Nothing,
        Kernel::Wait { operands } => wait(plan, id, operands)?,
        Kernel::Copy { from, to } => {
            let dense = |access: &Access| access.layout.is_dense(access.ty.shape());
            if from.ty != to.ty || !dense(from) || !dense(to) {
                return Err(fault("a commit between tensors of other forms"));
            }
            Action::Copy { from: place(from)?, to: place(to)? }
        }
        // Blocks are rows of the result: a transposed operand is read in tiles instead.
        Kernel::Elementwise(source)
            if let ([Instr::Load(0)], [from], [(0, to)]) =
                (&*source.instrs, &*source.inputs, &*source.outputs)
                && !from.layout.is_dense(from.ty.shape()) =>
        {
            if from.ty != to.ty || !to.layout.is_dense(to.ty.shape()) {
                return Err(fault("a copy between tensors of other forms"));
            }
            Action::Node {
                op: Op::Copy(Copy),
                args: vec![place(from)?],
                results: vec![place(to)?],
                workspace: 0..0,
            }
        }
        Kernel::Elementwise(source) => Action::Elementwise {
            program: Program::new(source)?,
            inputs: places(&source.inputs)?,
            outputs: source.outputs.iter().map(|(_, access)| place(access)).collect::<Result<_, _>>()?,
        },
        Kernel::Node { node, args, results } => {
            if node.0 as usize >= plan.graph.len() {
                return Err(fault("the plan runs a missing node"));
            }
            let op = plan.graph.node(*node).op();
            if let (Op::Print(print), [value]) = (op, args.as_slice()) {
                return Ok(Action::Print { label: print.label.clone(), value: place(value)? });
            }
            if let (Op::CollectiveStart(start), [operand], [result]) =
                (op, args.as_slice(), results.as_slice())
                && start.world > 1
            {
                let (kind, world) = (start.kind, start.world);
                let (operand, result) = (dense_place(plan, operand)?, dense_place(plan, result)?);
                return Ok(Action::Start { node: *node, kind, world, operand, result });
            }
            let arg_types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
            let result_types: Vec<&Type> = results.iter().map(|a| &a.ty).collect();
            let needed = op.workspace(&arg_types, &result_types);
            let planned = plan.schedule_graph.workspace(id);
            if needed > planned {
                return Err(fault(format_args!(
                    "`{}` needs {needed} bytes of workspace, and {planned} are planned",
                    op.name()
                )));
            }
            let start = plan.schedule.workspace_offsets.get(id.0 as usize).copied().flatten();
            let workspace = match start {
                _ if planned == 0 => 0..0,
                Some(start)
                    if start % OPERAND_ALIGNMENT == 0
                        && start.checked_add(planned).is_some_and(|end| end <= plan.schedule.arena_bytes) =>
                {
                    start as usize..(start + planned) as usize
                }
                _ => return Err(fault(format_args!("the workspace of `{}` has no place", op.name()))),
            };
            Action::Node { op: op.clone(), args: places(args)?, results: places(results)?, workspace }
        }
    })
}

/// The end of a collective. With one rank it is over when it starts.
fn wait(plan: &Plan, id: OpId, operands: &[Access]) -> Result<Action, OpError> {
    let done = plan.op_nodes.get(id.0 as usize).filter(|node| (node.0 as usize) < plan.graph.len());
    let done = plan.graph.node(*done.ok_or_else(|| fault("the plan waits for a missing node"))?);
    let (Op::CollectiveDone(op), [result, operand], Some(&started)) =
        (done.op(), operands, done.args().first())
    else {
        return Err(fault("the plan waits for what is no collective"));
    };
    if op.world == 1 {
        return Ok(Action::Nothing);
    }
    let start = plan.graph.producer(started).0;
    if !matches!(start.op(), Op::CollectiveStart(_)) {
        return Err(fault("the plan waits for a collective that nothing starts"));
    }
    let (operand, result) = (dense_place(plan, operand)?, dense_place(plan, result)?);
    Ok(Action::Wait { start: start.id, operand, result })
}

/// Engines move bytes: what they get is dense.
fn dense_place(plan: &Plan, access: &Access) -> Result<Place, OpError> {
    if access.layout.is_dense(access.ty.shape()) {
        Place::new(plan, access)
    } else {
        Err(fault("a collective of a tensor that is not dense"))
    }
}
