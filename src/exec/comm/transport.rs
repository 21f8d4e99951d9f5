//! What an engine has to do: move messages between pairs of ranks, in order.

use std::{sync::Arc, time::Duration};

use super::{Failure, Watch};

/// One rank's end of an engine.
pub(super) trait Transport: Send {
    fn rank(&self) -> u32;

    fn world(&self) -> u32;

    /// Hands a message over; does not wait until the other rank takes it.
    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Lost>;

    /// The next message of a rank, waited for at most `limit` long. Sleeps while it waits, and wakes
    /// where the group fails or this rank is stopped.
    fn receive(&mut self, from: u32, limit: Duration) -> Result<Vec<u8>, Lost>;

    /// The first failure that this rank has heard of.
    fn failure(&self) -> Option<Failure>;

    /// As [`super::Comm::watch`].
    fn watch(&self) -> Arc<dyn Watch>;

    /// Tells all ranks. The first failure of a group counts; what came first is returned.
    fn fail(&mut self, failure: Failure) -> Failure;

    /// No message will come from this rank any more.
    fn end(&mut self);
}

/// Why no message came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Lost {
    Late,
    /// The other rank has ended.
    Ended,
    /// This rank is to stop.
    Stopped,
    /// The group has failed.
    Failed(Failure),
    /// The engine itself, in its own words.
    Engine(String),
}
