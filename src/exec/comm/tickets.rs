//! The collectives of one run, from their start to their end.

use super::{Link, Request, Ticket};
use crate::{
    ir::{Graph, NodeId, Type},
    ops::{CollectiveKind, OpError},
};

/// Collectives that have started and are not waited for yet, by the node that starts them.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Vec<(NodeId, Ticket)>);

impl Tickets {
    /// Starts the collective of a node, on an operand of type `ty`.
    pub fn start(
        &mut self,
        link: &mut Link<'_>,
        graph: &Graph,
        node: NodeId,
        (kind, world): (CollectiveKind, u32),
        ty: &Type,
    ) -> Result<(), OpError> {
        if world != link.comm.world() {
            return Err(OpError::new(format!(
                "the step is compiled for {world} ranks, and runs in a group of {}",
                link.comm.world()
            )));
        }
        let place = (link.place)(graph, node);
        let request = Request { kind, name: kind.name(), ty: ty.clone(), node: node.0, place };
        self.0.push((node, link.comm.start(request)?));
        Ok(())
    }

    /// Waits for the collective that a node started.
    pub fn wait(
        &mut self,
        link: &mut Link<'_>,
        start: NodeId,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), OpError> {
        let at = self.0.iter().position(|(node, _)| *node == start);
        let at = at.ok_or_else(|| OpError::new("internal: a collective that has not started"))?;
        let (_, ticket) = self.0.swap_remove(at);
        Ok(link.comm.wait(ticket, input, output)?)
    }
}
