//! Engines that connect ranks: threads of this process, or processes under MPI.
//!
//! A [`Comm`] is one rank's end of a group. Engines only move bytes ([`transport::Transport`]); what
//! a collective means is written once, in `exchange`, with sums in rank order. So every engine gives
//! the same bits. Every collective begins with a header that all ranks compare: ranks that do
//! different things, a rank that fails, ends or does not come in time are errors on all others.

mod exchange;
mod failure;
mod mpi;
mod sum;
mod threads;
mod tickets;
mod transport;

use std::{sync::Arc, time::Duration};

pub(in crate::exec) use exchange::seconds;
pub(crate) use failure::named;
pub use failure::{Failure, FailureKind};
pub use mpi::{MpiError, connect as mpi};
pub use threads::threads;
pub(crate) use tickets::Tickets;

use crate::{
    ir::{Graph, NodeId, Type},
    ops::CollectiveKind,
};

/// How long a rank waits for another one where nothing else is said.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(60);

/// The most ranks that one process starts as threads.
pub const MAX_THREADS: u32 = 1024;

/// A collective as one rank calls it. All ranks of a group must say the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub kind: CollectiveKind,
    /// As the program calls it: `all_reduce`.
    pub name: &'static str,
    /// Of the operand.
    pub ty: Type,
    /// The op's number in its graph: two collectives of one line are told apart by it.
    pub node: u32,
    /// The line that calls it: `train.tg:12`.
    pub place: String,
}

/// A collective that has started and is not waited for yet.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// A group beside its [`Comm`], for who waits for what devices do together. On any thread, at any time.
///
/// Ranks count what their devices do together, from 1 and in the same order, and say how far they
/// have come. So of ranks that wait in vain each knows for whom.
pub trait Watch: Send + Sync {
    /// As [`Comm::failure`]. A rank that looks here answers the others' questions.
    fn failure(&self) -> Option<Failure>;

    /// Tells all ranks. The first failure of a group counts; what came first is returned.
    fn fail(&self, failure: Failure) -> Failure;

    /// This rank's device has come to number `count`.
    fn came(&self, count: u64);

    /// The ranks that are not known to have come to number `count`. Asks them, where they are elsewhere:
    /// their answers count when this is called again.
    fn behind(&self, count: u64) -> Vec<u32>;
}

/// One rank's end of a group of ranks.
///
/// The buffers of a collective belong to it from [`Comm::start`] to [`Comm::wait`]. Ranks wait for
/// their collectives in one order, which is that of their common plan.
pub trait Comm: Send {
    /// This rank's number, from 0.
    fn rank(&self) -> u32;

    /// How many ranks there are.
    fn world(&self) -> u32;

    /// Starts a collective.
    fn start(&mut self, request: Request) -> Result<Ticket, Failure>;

    /// Waits for it. `input` holds the operand and `output` becomes the result, both dense. An error
    /// is the same on every rank that meets it, and every later call gives it again.
    fn wait(&mut self, ticket: Ticket, input: &[u8], output: &mut [u8]) -> Result<(), Failure>;

    /// Compares what all ranks are about to do, in this order; their devices move the data.
    fn agree(&mut self, requests: &[Request]) -> Result<(), Failure>;

    /// How long a rank waits for another one.
    fn limit(&self) -> Duration;

    /// The group beside this. `None` where no other rank is in it.
    fn watch(&self) -> Option<Arc<dyn Watch>>;

    /// What has gone wrong in the group so far, as far as this rank knows.
    fn failure(&self) -> Option<Failure>;

    /// Tells all others that this rank has failed, so that none waits for it.
    fn fail(&mut self, failure: Failure);

    /// Tells all others that this rank takes part in nothing any more.
    fn end(&mut self);
}

/// A group as an interpreter uses it during one run.
pub struct Link<'a> {
    pub comm: &'a mut dyn Comm,
    /// The line that a node comes from, for messages: `train.tg:12`.
    pub place: &'a dyn Fn(&Graph, NodeId) -> String,
}

/// The only rank there is: collectives are copies, and plans have none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Comm for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn world(&self) -> u32 {
        1
    }

    fn start(&mut self, _request: Request) -> Result<Ticket, Failure> {
        Ok(Ticket(0))
    }

    fn wait(&mut self, _ticket: Ticket, input: &[u8], output: &mut [u8]) -> Result<(), Failure> {
        if input.len() != output.len() {
            return Err(Failure::engine(0, "a collective of one rank changes the size".into()));
        }
        output.copy_from_slice(input);
        Ok(())
    }

    fn agree(&mut self, _requests: &[Request]) -> Result<(), Failure> {
        Ok(())
    }

    fn limit(&self) -> Duration {
        DEFAULT_LIMIT
    }

    fn watch(&self) -> Option<Arc<dyn Watch>> {
        None
    }

    fn failure(&self) -> Option<Failure> {
        None
    }

    fn fail(&mut self, _failure: Failure) {}

    fn end(&mut self) {}
}
