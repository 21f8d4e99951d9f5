//! Ranks as processes that `mpirun` started. MPI moves bytes, and nothing else: sums are ours, so
//! their bits are those of every other engine.
//!
//! MPI cannot wait with a time limit, and its own waits keep a core busy. So sends and receives are
//! the kinds that return at once, and a rank sleeps between two looks.

mod library;
mod messages;
mod notice;
mod start;

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use messages::Messages;

use super::{
    Comm, Failure, Watch,
    exchange::Exchange,
    transport::{Lost, Transport},
};
use crate::guard;

/// How long a rank sleeps between two looks: at first short, as most messages come soon.
const FIRST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Why there is no MPI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiError {
    pub message: String,
    pub help: Option<String>,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MpiError {}

/// This process as a rank of the job that `mpirun` started it in. The MPI library is looked for now,
/// so that `tg` runs where there is none. Once per process.
pub fn connect(limit: Duration) -> Result<Box<dyn Comm>, MpiError> {
    let messages = Messages::new(start::start(limit)?, limit);
    let (rank, world) = (messages.rank(), messages.world());
    let transport = Mpi { rank, world, messages: Arc::new(Mutex::new(messages)) };
    Ok(Box::new(Exchange::new(transport, limit)))
}

/// A rank's end. MPI may be called by one thread at a time, which the lock holds.
struct Mpi {
    rank: u32,
    world: u32,
    messages: Arc<Mutex<Messages>>,
}

/// No rank panics while it holds the lock, and what it guards is whole at all times.
fn lock(messages: &Mutex<Messages>) -> MutexGuard<'_, Messages> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for Mpi {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Lost> {
        lock(&self.messages).send(to, message)
    }

    fn receive(&mut self, from: u32, limit: Duration) -> Result<Vec<u8>, Lost> {
        let begin = Instant::now();
        let mut sleep = Sleep::new();
        loop {
            if let Some(result) = lock(&self.messages).look(from).map_err(Lost::Engine)? {
                return result;
            }
            if guard::cancelled() {
                return Err(Lost::Stopped);
            }
            if begin.elapsed() >= limit {
                return Err(Lost::Late);
            }
            sleep.a_while();
        }
    }

    fn failure(&self) -> Option<Failure> {
        lock(&self.messages).failure()
    }

    fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(Beside(Arc::clone(&self.messages)))
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        lock(&self.messages).fail(failure)
    }

    fn end(&mut self) {
        lock(&self.messages).end();
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.end();
    }
}

/// The group as a rank sees it that waits for its device.
struct Beside(Arc<Mutex<Messages>>);

impl Watch for Beside {
    fn failure(&self) -> Option<Failure> {
        let mut messages = lock(&self.0);
        // MPI that fails here fails in the next collective, which reports it.
        let _ = messages.listen();
        messages.failure()
    }

    fn fail(&self, failure: Failure) -> Failure {
        lock(&self.0).fail(failure)
    }

    fn came(&self, count: u64) {
        lock(&self.0).came(count);
    }

    fn behind(&self, count: u64) -> Vec<u32> {
        lock(&self.0).behind(count)
    }
}

/// Sleeps that grow while nothing happens.
struct Sleep(Duration);

impl Sleep {
    fn new() -> Sleep {
        Sleep(FIRST_SLEEP)
    }

    fn a_while(&mut self) {
        thread::sleep(self.0);
        self.0 = (self.0 * 2).min(LONGEST_SLEEP);
    }
}
