//! A device as one session uses it: streams, and the memory that all its steps share.

use std::{env, sync::Arc};

use super::{
    context::{Context, count},
    memory::{Block, Stream},
};
use crate::{
    exec::Persistent,
    ops::{Cause, OpError},
    plan::Plan,
    report::Bytes,
};

/// Set to 1, every buffer gets memory of its own between guard zones, and ops run one by one.
const CHECK_VARIABLE: &str = "TG_CUDA_CHECK";

/// Set to 0, steps are started op by op, not recorded and replayed.
const RECORD_VARIABLE: &str = "TG_CUDA_RECORD";

/// A device in use by one session.
pub struct Cuda {
    pub(super) context: Arc<Context>,
    pub(super) compute: Arc<Stream>,
    /// Uploads, which may run while the device computes.
    pub(super) copies: Arc<Stream>,
    arena: Option<Block>,
    pub(super) checks: bool,
    pub(super) tf32: bool,
    /// Whether steps are recorded.
    pub(super) records: bool,
    /// Free bytes of the device before this session took any.
    free_before: u64,
    /// How many of them are gone since memory was taken last.
    pub(super) taken: u64,
}

impl Cuda {
    /// Starts to use a device.
    pub fn open(index: u32) -> Result<Cuda, OpError> {
        let context = Context::get(index)?;
        Ok(Cuda {
            compute: Arc::new(Stream::new(&context)?),
            copies: Arc::new(Stream::new(&context)?),
            arena: None,
            checks: env::var_os(CHECK_VARIABLE).is_some_and(|value| !value.is_empty() && value != "0"),
            tf32: false,
            records: env::var_os(RECORD_VARIABLE).is_none_or(|value| value != "0"),
            free_before: context.memory()?.0,
            taken: 0,
            context,
        })
    }

    /// The device of a rank, where the first rank has `index`.
    pub fn open_for_rank(index: u32, rank: u32) -> Result<Cuda, OpError> {
        if rank == 0 {
            return Cuda::open(index);
        }
        let devices = count()?.max(1);
        let shifted = u64::from(index) + u64::from(rank);
        Cuda::open(if index < devices { (shifted % u64::from(devices)) as u32 } else { index })
    }

    /// Whether every buffer gets memory of its own, and ops run one by one.
    pub fn set_checks(&mut self, on: bool) {
        self.checks = on;
    }

    /// Whether f32 products may round their operands to TF32.
    pub fn set_tf32(&mut self, on: bool) {
        self.tf32 = on;
    }

    /// As users name it: `cuda:0`.
    pub fn title(&self) -> String {
        self.context.title()
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        self.arena.as_ref().map_or(0, Block::bytes)
    }

    /// Waits for all work of the session.
    pub fn wait(&self) -> Result<(), OpError> {
        self.compute.wait("running a step").and(self.copies.wait("uploading the inputs"))
    }

    /// The first byte of the arena.
    pub(super) fn arena(&self) -> u64 {
        self.arena.as_ref().map_or(0, Block::address)
    }

    /// An error where a step needs more than all of the device's memory, before anything is prepared.
    pub(super) fn admits(&self, plan: &Plan) -> Result<(), OpError> {
        let (free, total) = self.context.memory()?;
        if plan.peak_bytes() > total { Err(self.too_small(plan, free, total)) } else { Ok(()) }
    }

    /// Puts the persistent tensors of a step on the device and makes room for its arena. Where the
    /// memory is short, nothing was taken, and the error says what the step needs.
    pub(super) fn reserve(&mut self, plan: &Plan, slots: &mut [Persistent]) -> Result<(), OpError> {
        let arena = if self.checks { 0 } else { plan.schedule.arena_bytes };
        let context = Arc::clone(&self.context);
        let is_here = |slot: &Persistent| slot.block(|block| block.is_on(&context)).is_some();
        let missing: u64 = slots
            .iter()
            .filter(|slot| !is_here(slot))
            .map(|slot| slot.ty().bytes())
            .fold(0, u64::saturating_add);
        let grows = arena > self.arena_bytes();
        if grows || missing > 0 {
            let (free, total) = self.context.memory()?;
            let room = free.saturating_add(if grows { self.arena_bytes() } else { 0 });
            if missing.saturating_add(if grows { arena } else { 0 }) > room {
                return Err(self.too_small(plan, room, total));
            }
        }
        if grows {
            // What it held does not outlive a step.
            self.arena = None;
            let block = Block::new(&self.compute, arena, "the memory of the step");
            self.arena = Some(block.map_err(|error| self.explained(plan, error))?);
        }
        for slot in slots {
            let block = match is_here(slot) {
                true => None,
                false => {
                    let block = Block::new(&self.compute, slot.ty().bytes(), "a persistent tensor");
                    Some(block.map_err(|error| self.explained(plan, error))?)
                }
            };
            slot.move_to_device(block)?;
        }
        if grows || missing > 0 {
            self.taken = self.free_before.saturating_sub(self.context.memory()?.0);
        }
        Ok(())
    }

    /// An error of the device with what the step needs, where it is about memory.
    pub(super) fn explained(&self, plan: &Plan, error: OpError) -> OpError {
        if error.cause != Cause::Limit {
            return error;
        }
        match self.context.memory() {
            Ok((free, total)) => self.too_small(plan, free, total),
            Err(_) => error,
        }
    }

    fn too_small(&self, plan: &Plan, free: u64, total: u64) -> OpError {
        let message = format!(
            "`{}` needs {} on `{}`: {} of persistent tensors and {} of arena; {} of its {} are free",
            plan.name,
            Bytes(plan.peak_bytes()),
            self.title(),
            Bytes(plan.persistent_bytes),
            Bytes(plan.schedule.arena_bytes),
            Bytes(free),
            Bytes(total),
        );
        let help = "`tg plan` shows what is alive at the peak; make it smaller with `--set`, or recompute with `checkpoint < … >` or a `budget`";
        OpError { cause: Cause::Limit, ..OpError::new(message) }.help(help)
    }
}
