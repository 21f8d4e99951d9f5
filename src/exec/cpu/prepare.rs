//! What an executable knows of each op before the first run: kernels, places, layouts.

use std::{ops::Range, sync::Arc};

use super::elementwise::Program;
use crate::{
    exec::place::{self, Place, Root, dense_place, fault},
    ir::{NodeId, Type},
    ops::{CollectiveKind, Copy, Op, OpError},
    plan::{Access, Instr, Kernel, Plan},
    schedule::OpId,
};

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
    /// The end of the collective that a node began.
    Wait(place::Wait),
}

impl Action {
    /// Where it writes.
    pub fn written(&self) -> impl Iterator<Item = Root> {
        let places: &[Place] = match self {
            Action::Nothing | Action::Print { .. } | Action::Wait(_) => &[],
            Action::Elementwise { outputs, .. } => outputs,
            Action::Copy { to, .. } | Action::Start { result: to, .. } => std::slice::from_ref(to),
            Action::Node { results, .. } => results,
        };
        places.iter().map(|place| place.root)
    }
}

pub(super) fn prepare(plan: &Plan) -> Result<Vec<Action>, OpError> {
    place::check(plan)?;
    plan.kernels.iter().enumerate().map(|(k, kernel)| action(plan, OpId(k as u32), kernel)).collect()
}

fn action(plan: &Plan, id: OpId, kernel: &Kernel) -> Result<Action, OpError> {
    let place = |access: &Access| Place::new(plan, access);
    let places = |accesses: &[Access]| accesses.iter().map(place).collect::<Result<Vec<Place>, OpError>>();
    Ok(match kernel {
        Kernel::Nothing => Action::Nothing,
        Kernel::Wait { operands } => match place::wait(plan, id, operands)? {
            Some(wait) => Action::Wait(wait),
            None => Action::Nothing,
        },
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
            place::check_workspace(plan, id, op, op.workspace(&arg_types, &result_types))?;
            let workspace = place::workspace(plan, id)?;
            Action::Node { op: op.clone(), args: places(args)?, results: places(results)?, workspace }
        }
    })
}
