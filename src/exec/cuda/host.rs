//! What the host does between parts of a step: prints, collectives of several ranks, ops that only it
//! has kernels for. Operands come to the host and results go back. The device waits.

use std::sync::{Arc, atomic::AtomicBool};

use cudarc::driver::{result, sys::CUdeviceptr};

use super::{bind::Memory, error::While, memory, prepare::HostAction, staging::Part, work::Address};
use crate::{
    exec::{
        Tensor,
        comm::{Link, Tickets},
        cpu::{ScalarPage, call_op},
        place::{Place, Wait},
        run::Printer,
    },
    ops::OpError,
    plan::Plan,
    schedule::OpId,
};

/// What the host needs of a call.
pub(super) struct Call<'a, 'l> {
    pub page: &'a ScalarPage,
    pub cancel: &'a AtomicBool,
    pub link: &'a mut Link<'l>,
}

/// The host's part of one run.
pub(super) struct Host<'a> {
    plan: &'a Arc<Plan>,
    tickets: Tickets,
}

impl<'a> Host<'a> {
    pub fn new(plan: &'a Arc<Plan>) -> Host<'a> {
        Host { plan, tickets: Tickets::default() }
    }

    /// Does what an op of the plan asks of the host. The device has nothing to do, and its context is
    /// current.
    pub fn act(
        &mut self,
        op: OpId,
        action: &HostAction,
        memory: &dyn Memory,
        call: &mut Call<'_, '_>,
        printer: &mut Option<Printer>,
    ) -> Result<(), OpError> {
        let page = call.page;
        match action {
            HostAction::Print { label, value } => {
                if let Some(printer) = printer {
                    printer(label, &download(op, value, memory, page)?);
                }
                Ok(())
            }
            HostAction::Start { node, kind, world, operand } => {
                self.tickets.start(call.link, &self.plan.graph, *node, (*kind, *world), &operand.ty)
            }
            HostAction::Wait(Wait { start, operand, result }) => {
                let input = download(op, operand, memory, page)?;
                let mut output = Tensor::try_zeros(result.ty.clone())?;
                self.tickets.wait(call.link, *start, input.bytes(), output.bytes_mut()?)?;
                upload(op, result, &output, memory)
            }
            HostAction::Op { op: kernel, args, results } => {
                let inputs =
                    args.iter()
                        .map(|place| download(op, place, memory, page))
                        .collect::<Result<Vec<Tensor>, OpError>>()?;
                let types = results.iter().map(|place| place.ty.clone()).collect();
                let outputs = call_op(kernel, &inputs, types, page)?;
                results.iter().zip(&outputs).try_for_each(|(place, tensor)| upload(op, place, tensor, memory))
            }
        }
    }
}

/// The address of the first byte of an operand's root.
fn base(op: OpId, place: &Place, memory: &dyn Memory) -> Result<CUdeviceptr, OpError> {
    memory.address(op, Address { root: place.root, offset: 0 })
}

/// A dense tensor of what lies at a place.
fn download(op: OpId, place: &Place, memory: &dyn Memory, page: &ScalarPage) -> Result<Tensor, OpError> {
    let part = Part::new(place)?;
    let mut bytes = vec![0u8; part.bytes];
    if !bytes.is_empty() {
        let from = base(op, place, memory)? + part.start;
        // SAFETY: the place lies in its root (`Place::new`), and the device has nothing to do.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, from) }.during("downloading a tensor")?;
    }
    part.tensor(&bytes, page)
}

/// Puts a tensor at its place, which is dense.
fn upload(op: OpId, place: &Place, tensor: &Tensor, memory: &dyn Memory) -> Result<(), OpError> {
    if tensor.ty() != &place.ty || !place.layout.is_dense(place.ty.shape()) {
        return Err(OpError::new("internal: the host gives a tensor of another form"));
    }
    if tensor.bytes().is_empty() {
        return Ok(());
    }
    let offset = place.layout.offset * place.ty.dtype().size();
    let to = base(op, place, memory)? + offset as u64;
    // SAFETY: as in `download`.
    unsafe { memory::upload(to, tensor.bytes()) }
}
