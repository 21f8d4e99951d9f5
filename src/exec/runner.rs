//! What runs the steps of a session, whichever device that is.

use std::sync::{Arc, atomic::AtomicBool};

use super::{
    Device, Persistent, Tensor,
    comm::Link,
    cpu::{self, RunError, ScalarPage},
    cuda,
    persistent::on_host,
    run::{Printer, Run},
};
use crate::{ops::OpError, plan::Plan};

/// A device with the memory that all steps of a session share.
pub enum Runner {
    Cpu(cpu::Arena),
    Cuda(Box<cuda::Cuda>),
}

/// A plan that is prepared for the device of a [`Runner`].
pub enum Prepared {
    Cpu(cpu::Executable),
    Cuda(Box<cuda::Executable>),
}

/// What one run of a step is given.
pub struct Call<'a, 'l> {
    pub inputs: &'a [Tensor],
    pub page: &'a ScalarPage,
    pub cancel: &'a AtomicBool,
    pub link: &'a mut Link<'l>,
    /// Shown the values of `debug(x)`.
    pub printer: Printer,
}

impl Runner {
    /// Starts to use a device: that of a rank, where several run one program. The arena of the CPU has
    /// at most `host_limit` bytes.
    pub fn open(device: Device, rank: u32, host_limit: u64) -> Result<Runner, OpError> {
        match device.resolved() {
            Device::Cuda(index) => Ok(Runner::Cuda(Box::new(cuda::Cuda::open_for_rank(index, rank)?))),
            Device::Cpu | Device::Auto => Ok(Runner::Cpu(cpu::Arena::new(host_limit))),
        }
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> u64 {
        match self {
            Runner::Cpu(arena) => arena.bytes(),
            Runner::Cuda(cuda) => cuda.arena_bytes(),
        }
    }

    /// Checks a plan and prepares its kernels.
    pub fn prepare(&self, plan: Arc<Plan>) -> Result<Prepared, OpError> {
        Ok(match self {
            Runner::Cpu(_) => Prepared::Cpu(cpu::Executable::new(plan)?),
            Runner::Cuda(cuda) => Prepared::Cuda(Box::new(cuda::Executable::new(cuda, plan)?)),
        })
    }

    /// Runs a step once. Persistent tensors end where the step ran.
    pub fn run(
        &mut self,
        prepared: &mut Prepared,
        slots: &mut [Persistent],
        call: Call<'_, '_>,
    ) -> Result<Run, RunError> {
        let Call { inputs, page, cancel, link, printer } = call;
        match (self, prepared) {
            (Runner::Cpu(arena), Prepared::Cpu(executable)) => {
                executable.set_printer(Some(printer));
                let run = on_host(slots, &|_| true, |tensors| {
                    executable.run_among(arena, tensors, inputs, page, cancel, link)
                });
                run.map_err(RunError::of_no_op)?
            }
            (Runner::Cuda(cuda), Prepared::Cuda(executable)) => {
                executable.set_printer(Some(printer));
                executable.run_among(cuda, slots, inputs, page, cancel, link)
            }
            _ => {
                let error = OpError::new("internal: a step that is prepared for another device");
                Err(RunError::of_no_op(error))
            }
        }
    }
}

impl Prepared {
    /// How much a step gives a device to do; `None` on the CPU.
    pub fn stats(&self) -> Option<cuda::Stats> {
        match self {
            Prepared::Cpu(_) => None,
            Prepared::Cuda(executable) => Some(executable.stats()),
        }
    }
}
