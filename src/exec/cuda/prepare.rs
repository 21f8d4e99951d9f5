//! What an executable knows of a plan before the first run: runs of device work, and what the host
//! does between them.

use std::sync::Arc;

use super::{
    hazards::{self, Space, Touch},
    inline, kernels,
    merge::{self, Item},
    work::{Product, Work},
};
use crate::{
    exec::place::{self, Place, Root, dense_place, fault},
    ir::{DType, NodeId},
    ops::{CollectiveKind, Op, OpError},
    plan::{Access, Home, Instruction, Kernel, Plan},
    schedule::{BufferId, OpId},
};

/// What the host does while the device waits.
#[derive(Debug, Clone)]
pub(super) enum HostAction {
    Print {
        label: Arc<str>,
        value: Place,
    },
    /// A collective of several ranks begins.
    Start {
        node: NodeId,
        kind: CollectiveKind,
        world: u32,
        operand: Place,
    },
    /// The end of the collective that a node began.
    Wait(place::Wait),
    /// An op that only the host has a kernel for.
    Op {
        op: Op,
        args: Vec<Place>,
        results: Vec<Place>,
    },
}

/// What one op of the plan does.
#[derive(Debug, Clone)]
pub(super) enum Action {
    Device(Vec<Work>),
    Host(HostAction),
}

/// One op, in the order of the plan.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub op: OpId,
    pub action: Action,
    /// Whether it writes a persistent tensor.
    pub writes: bool,
}

impl Step {
    /// Whether its f32 products may use TF32.
    pub fn set_tf32(&mut self, on: bool) {
        let Action::Device(works) = &mut self.action else { return };
        for work in works {
            if let Work::Product(product) = work {
                product.tf32 = on && product.dtype == DType::F32;
            }
        }
    }

    /// Lets products whose bias the library does not take add to it instead.
    pub fn spread_biases(&mut self, is_taken: impl Fn(&Product) -> bool) {
        let Action::Device(works) = &mut self.action else { return };
        let all = std::mem::take(works).into_iter().flat_map(|work| match work {
            Work::Product(product) if product.bias.is_some() && !is_taken(&product) => product.spread(),
            work => vec![work],
        });
        *works = all.collect();
    }

    /// What the device does; nothing where the host does it.
    pub fn works(&self) -> &[Work] {
        match &self.action {
            Action::Device(works) => works,
            Action::Host(_) => &[],
        }
    }
}

/// What the device does without the host, and then the host.
pub(super) struct Stretch {
    /// Each with an op that it is done for.
    pub works: Vec<(OpId, Work)>,
    pub host: Option<OpId>,
    /// Whether any of that writes persistent tensors.
    pub writes: bool,
}

/// The same work with as few launches as its hazards allow.
pub(super) fn stretches(plan: &Plan, steps: &[Step]) -> Result<Vec<Stretch>, OpError> {
    let touches: Vec<Vec<Touch>> =
        steps.iter().map(|step| hazards::touches(plan, step.op)).collect::<Result<_, _>>()?;
    let fused = inline::instead(plan, steps, &touches)?;
    let mut stretches = Vec::new();
    let (mut items, mut writes) = (Vec::new(), false);
    let mut checks = Checks::default();
    for ((step, touched), fused) in steps.iter().zip(&touches).zip(fused) {
        writes |= step.writes;
        let (works, touched) = match &fused {
            Some(fused) => (&*fused.works, &fused.touches),
            None => (step.works(), touched),
        };
        for work in works {
            let touches = hazards::of_work(work, touched);
            if !checks.has(work, &touches) {
                items.push(Item { op: step.op, work: work.clone(), touches });
            }
        }
        if matches!(step.action, Action::Host(_)) {
            let works = merge::merged(std::mem::take(&mut items));
            stretches.push(Stretch { works, host: Some(step.op), writes: std::mem::take(&mut writes) });
            // What the host writes is not looked at.
            checks = Checks::default();
        }
    }
    stretches.push(Stretch { works: merge::merged(items), host: None, writes });
    Ok(stretches)
}

/// Looks at indices that were made, and whose indices are still there: two ops often look things up by the
/// same ones, as a loss and its gradient do. The first of them tells the fault.
#[derive(Default)]
struct Checks(Vec<(Work, Vec<Touch>)>);

impl Checks {
    /// Whether a piece of work is a look that was made.
    fn has(&mut self, work: &Work, touches: &[Touch]) -> bool {
        let is_check = touches.iter().any(|touch| touch.space == Space::Faults);
        if !is_check {
            self.0.retain(|(_, read)| {
                !touches.iter().any(|touch| touch.writes && read.iter().any(|read| read.overlaps(touch)))
            });
            return false;
        }
        if self.0.iter().any(|(known, _)| kernels::same_check(known, work)) {
            return true;
        }
        let read = touches.iter().filter(|touch| touch.space != Space::Faults);
        self.0.push((work.clone(), read.cloned().collect()));
        false
    }
}

/// All ops in the order in which they run.
pub(super) fn steps(plan: &Plan) -> Result<Vec<Step>, OpError> {
    place::check(plan)?;
    let ops = plan.instructions.iter().filter_map(|instruction| match instruction {
        Instruction::Exec(op) => Some(*op),
        Instruction::Free(_) => None,
    });
    ops.map(|op| step(plan, op)).collect()
}

fn step(plan: &Plan, op: OpId) -> Result<Step, OpError> {
    let kernel =
        plan.kernels.get(op.0 as usize).ok_or_else(|| fault("the plan runs an op that it does not have"))?;
    let works = kernels::works(plan, op)?;
    let action = if works.contains(&Work::Host) {
        Action::Host(host_action(plan, op, kernel)?)
    } else {
        Action::Device(works)
    };
    Ok(Step { op, action, writes: !written(plan, kernel)?.is_empty() })
}

fn host_action(plan: &Plan, id: OpId, kernel: &Kernel) -> Result<HostAction, OpError> {
    let places = |accesses: &[Access]| {
        accesses.iter().map(|access| Place::new(plan, access)).collect::<Result<Vec<Place>, OpError>>()
    };
    match kernel {
        Kernel::Wait { operands } => {
            let wait = place::wait(plan, id, operands)?;
            Ok(HostAction::Wait(wait.ok_or_else(|| fault("a collective of one rank waits for the host"))?))
        }
        Kernel::Node { node, args, results } if (node.0 as usize) < plan.graph.len() => {
            let op = plan.graph.node(*node).op();
            match (op, args.as_slice()) {
                (Op::Print(print), [value]) => {
                    Ok(HostAction::Print { label: Arc::clone(&print.label), value: Place::new(plan, value)? })
                }
                (Op::CollectiveStart(start), [operand]) if start.world > 1 => Ok(HostAction::Start {
                    node: *node,
                    kind: start.kind,
                    world: start.world,
                    operand: dense_place(plan, operand)?,
                }),
                _ => Ok(HostAction::Op { op: op.clone(), args: places(args)?, results: places(results)? }),
            }
        }
        _ => Err(fault("the device leaves an op to the host that has none")),
    }
}

/// For each persistent tensor, whether an op of the plan writes it.
pub(super) fn written_slots(plan: &Plan) -> Result<Vec<bool>, OpError> {
    let mut is_written = vec![false; plan.graph.slots.len()];
    for kernel in &plan.kernels {
        for slot in written(plan, kernel)? {
            if let Some(is_written) = is_written.get_mut(slot) {
                *is_written = true;
            }
        }
    }
    Ok(is_written)
}

/// The persistent tensors that an op writes.
fn written(plan: &Plan, kernel: &Kernel) -> Result<Vec<usize>, OpError> {
    let results: Vec<&Access> = match kernel {
        Kernel::Node { results, .. } => results.iter().collect(),
        Kernel::Elementwise(group) => group.outputs.iter().map(|(_, access)| access).collect(),
        Kernel::Copy { to, .. } => vec![to],
        Kernel::Wait { .. } | Kernel::Nothing => Vec::new(),
    };
    let mut slots = Vec::new();
    for access in results {
        if let Root::Slot(slot) = Place::new(plan, access)?.root {
            slots.push(slot);
        }
    }
    Ok(slots)
}

/// End of the highest byte of the arena that an op, an input or a workspace uses.
pub(super) fn high_water(plan: &Plan) -> Result<u64, OpError> {
    let mut high = 0;
    let mut include = |buffer: BufferId| {
        let offset = plan.schedule.offsets.get(buffer.0 as usize).copied().flatten();
        if let Some(offset) = offset {
            high = high.max(offset + plan.schedule_graph.arena_bytes(buffer));
        }
    };
    for (k, buffer) in plan.buffers.iter().enumerate() {
        if matches!(buffer.home, Home::Input(_)) {
            include(BufferId(k as u32));
        }
    }
    let mut workspaces = 0;
    for instruction in &plan.instructions {
        if let Instruction::Exec(op) = *instruction {
            plan.schedule_graph.makes(op).iter().for_each(|&made| include(made));
            workspaces = workspaces.max(place::workspace(plan, op)?.end as u64);
        }
    }
    Ok(high.max(workspaces))
}
