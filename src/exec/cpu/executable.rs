//! Runs a plan: a loop over its instructions, in one arena, at the planned offsets.

use std::sync::{Arc, atomic::AtomicBool};

use super::{
    Arena, Call, Operand, RunError, ScalarPage, Shared,
    prepare::{Action, prepare},
};
use crate::{
    exec::{
        Tensor,
        comm::{Alone, Link, Tickets},
        place::{Place, Root, Wait, node_of, reach},
        run::{Printer, Progress, Run, check_inputs, check_slots},
    },
    ir::{DType, Type},
    ops::{Cause, Layout, OpError},
    plan::{Home, Instruction, Plan},
    schedule::BufferId,
};

/// A plan with everything prepared that a run needs.
pub struct Executable {
    plan: Arc<Plan>,
    /// One per op of the schedule graph.
    actions: Vec<Action>,
    /// The slots that a run writes.
    written: Vec<bool>,
    /// Buffers whose place another takes over: what is freed is the other's.
    taken_over: Vec<bool>,
    poison: bool,
    printer: Option<Printer>,
}

impl RunError {
    /// Whether the run ended because it was asked to.
    pub fn is_cancelled(&self) -> bool {
        self.error.cause == Cause::Cancelled
    }
}

/// Addresses of one run.
struct Memory<'a> {
    arena: *mut u8,
    slots: &'a [Shared<u8>],
}

impl Memory<'_> {
    fn address(&self, root: Root) -> *mut u8 {
        match root {
            Root::Arena(offset) => self.arena.wrapping_add(offset),
            Root::Slot(slot) => self.slots.get(slot).map_or(std::ptr::null_mut(), Shared::get),
        }
    }

    /// # Safety
    /// The arena has the planned size and the slots are those of the plan (checked by
    /// `Executable::run`), so that every place `prepare` let through lies inside.
    unsafe fn operand<'p>(&self, place: &'p Place) -> Operand<'p> {
        // SAFETY: as for this function.
        unsafe { Operand::new(self.address(place.root), &place.ty, &place.layout) }
    }
}

impl Executable {
    /// Checks that every operand lies inside its buffer and prepares all kernels.
    pub fn new(plan: Arc<Plan>) -> Result<Executable, OpError> {
        let actions = prepare(&plan)?;
        let mut written = vec![false; plan.graph.slots.len()];
        for root in actions.iter().flat_map(Action::written) {
            if let Root::Slot(slot) = root
                && let Some(written) = written.get_mut(slot)
            {
                *written = true;
            }
        }
        let mut taken_over = vec![false; plan.buffers.len()];
        for old in plan.schedule.overwrites.iter().flatten() {
            if let Some(taken) = taken_over.get_mut(old.0 as usize) {
                *taken = true;
            }
        }
        Ok(Executable { plan, actions, written, taken_over, poison: cfg!(debug_assertions), printer: None })
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Fills the arena with NaN before a run and every buffer when it is freed, so that a plan that
    /// frees too early fails loudly. On by default in debug builds.
    pub fn set_poison(&mut self, on: bool) {
        self.poison = on;
    }

    /// Who is shown the values of `debug(x)`.
    pub fn set_printer(&mut self, printer: Option<Printer>) {
        self.printer = printer;
    }

    /// Runs the step once. `slots` are updated in place, one per slot of the graph; a tensor that is
    /// shared is copied before it is written. Between two ops, `cancel` is looked at, but only until
    /// the first op that writes a slot: a cancelled run has updated nothing, and one that is
    /// cancelled later ends as any other. An op that fails after that leaves some slots written and
    /// others not, and the error says so.
    pub fn run(
        &mut self,
        arena: &mut Arena,
        slots: &mut [Tensor],
        inputs: &[Tensor],
        page: &ScalarPage,
        cancel: &AtomicBool,
    ) -> Result<Run, RunError> {
        let mut alone = Link { comm: &mut Alone, place: &|_, _| String::new() };
        self.run_among(arena, slots, inputs, page, cancel, &mut alone)
    }

    /// The same, as one of several ranks that run the same plan.
    pub fn run_among(
        &mut self,
        arena: &mut Arena,
        slots: &mut [Tensor],
        inputs: &[Tensor],
        page: &ScalarPage,
        cancel: &AtomicBool,
        link: &mut Link<'_>,
    ) -> Result<Run, RunError> {
        let plan = Arc::clone(&self.plan);
        let fail = RunError::of_no_op;
        check_slots(&plan.graph, slots.iter().map(Tensor::ty)).map_err(fail)?;
        check_inputs(&plan.graph, inputs.iter().map(Tensor::ty)).map_err(fail)?;
        // Before anything is written, as memory may be short.
        let mut outputs = plan
            .outputs
            .iter()
            .map(|access| super::zeros(&access.ty))
            .collect::<Result<Vec<Tensor>, OpError>>()
            .map_err(fail)?;
        arena.reserve(plan.schedule.arena_bytes).map_err(fail)?;
        let addresses: Vec<Shared<u8>> = slots
            .iter_mut()
            .enumerate()
            .map(|(k, slot)| {
                let is_written = self.written.get(k).copied().unwrap_or(false);
                // What is only read is not copied for being shared, and nobody writes there.
                Ok(Shared::new(if is_written {
                    slot.bytes_mut()?.as_mut_ptr()
                } else {
                    slot.bytes().as_ptr().cast_mut()
                }))
            })
            .collect::<Result<_, OpError>>()
            .map_err(fail)?;
        let memory = Memory { arena: arena.base(), slots: &addresses };
        let mut high_water = 0;
        if self.poison {
            // SAFETY: the arena has at least this size.
            unsafe { memory.arena.write_bytes(0xff, plan.schedule.arena_bytes as usize) };
        }
        self.place_inputs(&memory, inputs, &mut high_water);

        let mut operands: Vec<Operand<'_>> = Vec::new();
        let mut results: Vec<Operand<'_>> = Vec::new();
        let mut places: (Vec<Shared<u8>>, Vec<Shared<u8>>) = (Vec::new(), Vec::new());
        let mut progress = Progress::default();
        let mut tickets = Tickets::default();
        for instruction in &plan.instructions {
            let op = match *instruction {
                Instruction::Exec(op) => op,
                Instruction::Free(buffer) => {
                    self.poison_freed(&memory, buffer);
                    continue;
                }
            };
            let node = node_of(&plan, op);
            let Some(action) = self.actions.get(op.0 as usize) else {
                let error = OpError::new("internal: the plan runs an op that it does not have");
                return Err(RunError { node, error });
            };
            let writes = action.written().any(|root| matches!(root, Root::Slot(_)));
            let before = progress;
            progress.go_on(writes, cancel, || ()).map_err(|error| RunError { node, error })?;
            // A kernel may fail in the middle, the other ops before they write.
            let at = if matches!(action, Action::Node { .. }) { progress } else { before };
            let fail = |error| RunError { node, error: at.error(error) };
            for &made in plan.schedule_graph.makes(op) {
                high_water = high_water.max(self.end_of(made));
            }
            // SAFETY (all below): places were checked by `prepare`, slots and inputs above; the plan
            // gives operands that are alive at the same time places apart.
            match action {
                Action::Nothing => {}
                Action::Elementwise { program, inputs, outputs } => {
                    let first = |place: &Place| {
                        let offset = place.layout.offset * place.ty.dtype().size();
                        Shared::new(memory.address(place.root).wrapping_add(offset))
                    };
                    places.0.clear();
                    places.0.extend(inputs.iter().map(first));
                    places.1.clear();
                    places.1.extend(outputs.iter().map(first));
                    unsafe { program.run_at(&places.0, &places.1, page) }.map_err(fail)?;
                }
                Action::Copy { from, to } => {
                    let (from, to) = unsafe { (memory.operand(from), memory.operand(to)) };
                    // Over itself where the value was planned into its slot.
                    unsafe { from.start().copy_to(to.start(), from.ty.bytes() as usize) };
                }
                Action::Print { label, value } => {
                    if let Some(printer) = &mut self.printer {
                        let value = unsafe { copy_out(&memory.operand(value), page) }.map_err(fail)?;
                        printer(label, &value);
                    }
                }
                Action::Start { node, kind, world, operand, .. } => {
                    let collective = (*kind, *world);
                    tickets.start(link, &plan.graph, *node, collective, &operand.ty).map_err(fail)?;
                }
                Action::Wait(Wait { start, operand, result }) => {
                    let (operand, result) = unsafe { (memory.operand(operand), memory.operand(result)) };
                    let (input, output) = unsafe { (bytes_of(&operand), bytes_of_mut(&result)) };
                    tickets.wait(link, *start, input, output).map_err(fail)?;
                }
                Action::Node { op, args, results: made, workspace } => {
                    operands.clear();
                    operands.extend(args.iter().map(|place| unsafe { memory.operand(place) }));
                    results.clear();
                    results.extend(made.iter().map(|place| unsafe { memory.operand(place) }));
                    high_water = high_water.max(workspace.end as u64);
                    let scratch = memory.arena.wrapping_add(workspace.start);
                    let call = unsafe { Call::new(&operands, &results, scratch, workspace.len(), page) };
                    op.cpu(&call).map_err(fail)?;
                }
            }
        }
        self.outputs(&memory, page, &mut outputs).map_err(|error| fail(progress.error(error)))?;
        Ok(Run { outputs, high_water_bytes: high_water })
    }

    /// End of a buffer in the arena.
    fn end_of(&self, buffer: BufferId) -> u64 {
        let offset = self.plan.schedule.offsets.get(buffer.0 as usize).copied().flatten();
        offset.map_or(0, |offset| offset + self.plan.schedule_graph.arena_bytes(buffer))
    }

    fn place_inputs(&self, memory: &Memory<'_>, inputs: &[Tensor], high_water: &mut u64) {
        for (k, buffer) in self.plan.buffers.iter().enumerate() {
            let id = BufferId(k as u32);
            let offset = self.plan.schedule.offsets.get(k).copied().flatten();
            if let (Home::Input(index), Some(offset)) = (buffer.home, offset)
                && let Some(input) = inputs.get(index as usize)
            {
                let bytes = input.bytes();
                // SAFETY: `prepare` checked that the buffer holds the input and lies in the arena.
                unsafe {
                    memory
                        .arena
                        .wrapping_add(offset as usize)
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
                *high_water = (*high_water).max(self.end_of(id));
            }
        }
    }

    fn poison_freed(&self, memory: &Memory<'_>, buffer: BufferId) {
        let taken_over = self.taken_over.get(buffer.0 as usize).copied().unwrap_or(true);
        let offset = self.plan.schedule.offsets.get(buffer.0 as usize).copied().flatten();
        if let (true, false, Some(offset)) = (self.poison, taken_over, offset) {
            let is_bool = self
                .plan
                .buffers
                .get(buffer.0 as usize)
                .is_some_and(|b| self.plan.graph.ty(b.value).dtype() == DType::Bool);
            let bytes = self.plan.schedule_graph.arena_bytes(buffer) as usize;
            // NaN in every floating-point type; `true` where other bytes would be no bool.
            let pattern = if is_bool { 1 } else { 0xff };
            // SAFETY: `prepare` checked that the buffer lies in the arena.
            unsafe { memory.arena.wrapping_add(offset as usize).write_bytes(pattern, bytes) };
        }
    }

    /// Copies the outputs into tensors of their types.
    fn outputs(&self, memory: &Memory<'_>, page: &ScalarPage, outputs: &mut [Tensor]) -> Result<(), OpError> {
        for (access, output) in self.plan.outputs.iter().zip(outputs) {
            let place = Place::new(&self.plan, access)?;
            // SAFETY: as in `run`; outputs are alive to the end of the step.
            unsafe { copy_into(&memory.operand(&place), output, page) }?;
        }
        Ok(())
    }
}

/// The bytes of a dense operand.
///
/// # Safety
/// The operand may be read, and nobody writes it while the slice is used.
unsafe fn bytes_of<'a>(operand: &Operand<'a>) -> &'a [u8] {
    match operand.ty.bytes() as usize {
        // No bytes may have no address.
        0 => &[],
        // SAFETY: as for this function.
        len => unsafe { std::slice::from_raw_parts(operand.start(), len) },
    }
}

/// The bytes of a dense result.
///
/// # Safety
/// The result may be written, and nobody else uses it while the slice is used.
unsafe fn bytes_of_mut<'a>(operand: &Operand<'a>) -> &'a mut [u8] {
    match operand.ty.bytes() as usize {
        0 => &mut [],
        // SAFETY: as for this function.
        len => unsafe { std::slice::from_raw_parts_mut(operand.start(), len) },
    }
}

/// A dense tensor of what lies in `bytes` with this layout.
pub(crate) fn gathered(
    bytes: &[u128],
    ty: &Type,
    layout: &Layout,
    page: &ScalarPage,
) -> Result<Tensor, OpError> {
    let room = size_of_val(bytes) as u64;
    if reach(ty, layout).is_none_or(|end| end > room) {
        return Err(OpError::new(format!("internal: {ty} reaches beyond its {room} bytes")));
    }
    let mut tensor = super::zeros(ty)?;
    // SAFETY: words are aligned to 16 bytes, and hold all that the layout reaches. Nothing is written
    // through the operand.
    unsafe {
        let from = Operand::new(bytes.as_ptr().cast::<u8>().cast_mut(), ty, layout);
        copy_into(&from, &mut tensor, page)?;
    }
    Ok(tensor)
}

/// A dense tensor of its own.
///
/// # Safety
/// The operand may be read.
unsafe fn copy_out(from: &Operand<'_>, page: &ScalarPage) -> Result<Tensor, OpError> {
    let mut tensor = super::zeros(from.ty)?;
    // SAFETY: as for this function.
    unsafe { copy_into(from, &mut tensor, page) }?;
    Ok(tensor)
}

/// # Safety
/// The operand may be read.
unsafe fn copy_into(from: &Operand<'_>, tensor: &mut Tensor, page: &ScalarPage) -> Result<(), OpError> {
    if tensor.ty() != from.ty {
        return Err(OpError::new("internal: an output of another type"));
    }
    let layout = Layout::dense(from.ty.shape());
    // SAFETY: a dense tensor of the same type, which is the caller's alone.
    unsafe {
        let to = Operand::new(tensor.bytes_mut()?.as_mut_ptr(), from.ty, &layout);
        super::movement::copy(&Call::new(&[*from], &[to], super::NO_WORKSPACE, 0, page))
    }
}
