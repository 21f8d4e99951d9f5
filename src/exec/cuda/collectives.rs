//! The collectives of a step between GPUs: what ranks compare before it, and the work on the device.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    bind::{Bound, Memory},
    context::Context,
    memory::Event,
    nccl::{Collective, Group, Path},
    prepare::{Action, HostAction, Step},
    session::Cuda,
    work::Address,
};
use crate::{
    exec::{
        comm::{Link, Request},
        place::Place,
    },
    ir::NodeId,
    ops::OpError,
    plan::Plan,
    schedule::OpId,
};

/// How the collectives of the step that is about to start go to the other ranks: through a group of
/// GPUs, or with the host (`None`). Ranks compare what they are about to do.
pub(super) fn agree(
    plan: &Plan,
    steps: &[Step],
    cuda: &mut Cuda,
    link: &mut Link<'_>,
) -> Result<Option<Arc<Group>>, OpError> {
    let starts = steps.iter().filter_map(|step| match &step.action {
        Action::Host(HostAction::Start { node, kind, world, operand }) => {
            Some((*node, (*kind, *world), &operand.ty))
        }
        _ => None,
    });
    let requests = starts
        .map(|(node, collective, ty)| link.request(&plan.graph, node, collective, ty))
        .collect::<Result<Vec<Request>, OpError>>()?;
    // Where the host does it, each collective is compared when it runs.
    if requests.is_empty() || matches!(cuda.path, Path::NoLibrary | Path::SharedDevice) {
        return Ok(None);
    }
    link.comm.agree(&requests)?;
    cuda.group(link.comm)
}

/// Collectives of a step that were given addresses and have no end yet, by the node that starts them.
pub(super) struct Binder<'a> {
    pub context: &'a Arc<Context>,
    pub group: &'a Arc<Group>,
    pub steps: &'a [Step],
    pub begun: FxHashMap<NodeId, Arc<Event>>,
}

impl Binder<'_> {
    /// The start or the end of a collective, if `op` is one; `None` for what the host does.
    pub fn bind(&mut self, op: OpId, memory: &dyn Memory) -> Result<Option<Bound>, OpError> {
        let Some(step) = self.steps.iter().find(|step| step.op == op) else { return Ok(None) };
        let Action::Host(action) = &step.action else { return Ok(None) };
        let missing = || OpError::new("internal: a collective without a start or an end");
        match action {
            HostAction::Start { node, kind, operand, .. } => {
                let mut waits = self.steps.iter().filter_map(|step| match &step.action {
                    Action::Host(HostAction::Wait(wait)) if wait.start == *node => Some((step, wait)),
                    _ => None,
                });
                let (end, wait) = waits.next_back().ok_or_else(missing)?;
                let at = |step: &Step, place: &Place| {
                    let offset = (place.layout.offset * place.ty.dtype().size()) as u64;
                    memory.address(step.op, Address { root: place.root, offset })
                };
                let collective = Collective {
                    kind: *kind,
                    dtype: operand.ty.dtype(),
                    elements: (operand.ty.elements(), wait.result.ty.elements()),
                    from: at(step, operand)?,
                    to: at(end, &wait.result)?,
                    what: format!("`{}` of {}", kind.name(), operand.ty).into(),
                };
                let done = Arc::new(Event::new(self.context)?);
                self.begun.insert(*node, Arc::clone(&done));
                let ready = Arc::new(Event::new(self.context)?);
                Ok(Some(Bound::Start { group: Arc::clone(self.group), collective, ready, done }))
            }
            HostAction::Wait(wait) => {
                Ok(Some(Bound::Join(self.begun.remove(&wait.start).ok_or_else(missing)?)))
            }
            HostAction::Print { .. } | HostAction::Op { .. } => Ok(None),
        }
    }
}
