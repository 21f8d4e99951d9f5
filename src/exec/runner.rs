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

    /// Whether f32 products may use TF32, of steps that are prepared from here on. The CPU has none.
    #[must_use]
    pub fn with_tf32(mut self, on: bool) -> Runner {
        if let Runner::Cuda(cuda) = &mut self {
            cuda.set_tf32(on);
        }
        self
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
        let page = call.page;
        match self.start(prepared, slots, call)? {
            Some(run) => Ok(run),
            None => self.finish(prepared, page),
        }
    }

    /// Starts the upload of what a step is given, while the step before may still run. Where this is not
    /// called, [`Runner::start`] does it.
    pub fn upload(
        &self,
        prepared: &mut Prepared,
        inputs: &[Tensor],
        page: &ScalarPage,
    ) -> Result<(), RunError> {
        match (self, prepared) {
            (Runner::Cuda(_), Prepared::Cuda(executable)) => executable.upload(inputs, page),
            _ => Ok(()),
        }
    }

    /// The results of a step that was started, as soon as they are there.
    pub fn finish(&mut self, prepared: &mut Prepared, page: &ScalarPage) -> Result<Run, RunError> {
        match (self, prepared) {
            (Runner::Cuda(cuda), Prepared::Cuda(executable)) => executable.finish(cuda, page),
            _ => Err(RunError::of_no_op(OpError::new("internal: a step ends that has not started"))),
        }
    }

    /// Waits for all that was started.
    pub fn wait(&self) -> Result<(), OpError> {
        match self {
            Runner::Cpu(_) => Ok(()),
            Runner::Cuda(cuda) => cuda.wait(),
        }
    }

    /// Starts a step. `None` where a device runs it by itself: [`Runner::finish`] gives the results then,
    /// and is called before another step starts.
    pub fn start(
        &mut self,
        prepared: &mut Prepared,
        slots: &mut [Persistent],
        call: Call<'_, '_>,
    ) -> Result<Option<Run>, RunError> {
        let Call { inputs, page, cancel, link, printer } = call;
        match (self, prepared) {
            (Runner::Cpu(arena), Prepared::Cpu(executable)) => {
                executable.set_printer(Some(printer));
                let run = on_host(slots, &|_| true, |tensors| {
                    executable.run_among(arena, tensors, inputs, page, cancel, link)
                });
                run.map_err(RunError::of_no_op)?.map(Some)
            }
            (Runner::Cuda(cuda), Prepared::Cuda(executable)) => {
                executable.set_printer(Some(printer));
                if !executable.is_uploaded() {
                    executable.upload(inputs, page)?;
                }
                executable.start(cuda, slots, page, cancel, link)?;
                Ok(None)
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
