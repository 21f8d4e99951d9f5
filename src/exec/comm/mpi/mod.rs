//! Ranks as processes that `mpirun` started. MPI moves bytes, and nothing else: sums are ours, so
//! their bits are those of every other engine.
//!
//! MPI cannot wait with a time limit, and its own waits keep a core busy. So sends and receives are
//! the kinds that return at once, and a rank sleeps between two looks.

mod library;

use std::{
    collections::VecDeque,
    fmt, thread,
    time::{Duration, Instant},
};

use library::{Library, Sending};

use super::{
    Comm, Failure, FailureKind,
    exchange::Exchange,
    transport::{Lost, Transport},
};
use crate::guard;

/// Tags of messages: of collectives, of the failure of a group, of the end of a rank.
const DATA: i32 = 1;
const FAILURE: i32 = 2;
const END: i32 = 3;

/// How long a rank sleeps between two looks: at first short, as most messages come soon.
const FIRST_SLEEP: Duration = Duration::from_micros(20);
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// How long a rank that has failed goes on telling others before it leaves.
const FAREWELL: Duration = Duration::from_millis(500);

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
    let library = Library::start()?;
    let transport = Mpi {
        rank: library.rank(),
        world: library.world(),
        library,
        sending: Vec::new(),
        failure: None,
        has_ended: false,
        limit,
    };
    Ok(Box::new(Exchange::new(transport, limit)))
}

struct Mpi {
    rank: u32,
    world: u32,
    library: Library,
    /// Messages that MPI still reads.
    sending: Vec<Sending>,
    failure: Option<Failure>,
    has_ended: bool,
    /// How long another rank may take to come to the end.
    limit: Duration,
}

impl Mpi {
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank;
        (0..self.world).filter(move |&rank| rank != me)
    }

    fn post(&mut self, to: u32, tag: i32, message: Vec<u8>) -> Result<(), String> {
        self.finish_sends()?;
        let sending = self.library.send(to, tag, message)?;
        self.sending.push(sending);
        Ok(())
    }

    /// Lets go of the messages that are sent.
    fn finish_sends(&mut self) -> Result<(), String> {
        let mut still = Vec::with_capacity(self.sending.len());
        for mut sending in std::mem::take(&mut self.sending) {
            if !self.library.is_sent(&mut sending)? {
                still.push(sending);
            }
        }
        self.sending = still;
        Ok(())
    }

    /// Whether another rank has told of a failure.
    fn hear(&mut self) -> Result<Option<Failure>, String> {
        if self.failure.is_none()
            && let Some(incoming) = self.library.probe(None, FAILURE)?
        {
            let bytes = self.library.receive(incoming)?;
            self.failure = Failure::from_bytes(&bytes);
        }
        Ok(self.failure.clone())
    }

    fn take(&mut self, from: u32) -> Result<Option<Vec<u8>>, String> {
        match self.library.probe(Some(from), DATA)? {
            Some(incoming) => self.library.receive(incoming).map(Some),
            None => Ok(None),
        }
    }

    /// One look for a message of `from`.
    fn look(&mut self, from: u32) -> Result<Option<Result<Vec<u8>, Lost>>, String> {
        self.finish_sends()?;
        if let Some(message) = self.take(from)? {
            return Ok(Some(Ok(message)));
        }
        if let Some(failure) = self.hear()? {
            return Ok(Some(Err(Lost::Failed(failure))));
        }
        if self.library.probe(Some(from), END)?.is_some() {
            // What it sent before has come before.
            let last = self.take(from)?;
            return Ok(Some(last.ok_or(Lost::Ended)));
        }
        Ok(None)
    }

    /// Waits until every other rank has ended too, as MPI may only be closed together; not longer than
    /// for a collective, since one that was killed never ends.
    fn leave_together(&mut self) -> Result<(), String> {
        for to in self.others() {
            self.post(to, END, Vec::new())?;
        }
        let mut left: VecDeque<u32> = self.others().collect();
        let begin = Instant::now();
        let mut sleep = Sleep::new();
        while let Some(&rank) = left.front() {
            self.finish_sends()?;
            if let Some(incoming) = self.library.probe(Some(rank), END)? {
                self.library.receive(incoming)?;
                left.pop_front();
                continue;
            }
            // What another rank waits for will not come: it reports that.
            if self.hear()?.is_some() || guard::cancelled() {
                return Ok(());
            }
            if begin.elapsed() >= self.limit {
                let limit = self.limit.as_secs_f64();
                let message = format!("rank {rank} did not come to its end within {limit} s");
                self.failure = Some(Failure { kind: FailureKind::Late, rank, message });
                return Ok(());
            }
            sleep.a_while();
        }
        while !self.sending.is_empty() {
            self.finish_sends()?;
            sleep.a_while();
        }
        self.library.close()
    }
}

impl Transport for Mpi {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Lost> {
        if let Some(failure) = &self.failure {
            return Err(Lost::Failed(failure.clone()));
        }
        self.post(to, DATA, message).map_err(Lost::Engine)
    }

    fn receive(&mut self, from: u32, limit: Duration) -> Result<Vec<u8>, Lost> {
        let begin = Instant::now();
        let mut sleep = Sleep::new();
        loop {
            if let Some(result) = self.look(from).map_err(Lost::Engine)? {
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
        self.failure.clone()
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        if let Some(first) = &self.failure {
            return first.clone();
        }
        self.failure = Some(failure.clone());
        // Whoever cannot be told finds out by the time limit.
        for to in self.others() {
            let _ = self.post(to, FAILURE, failure.to_bytes());
        }
        let begin = Instant::now();
        while !self.sending.is_empty() && begin.elapsed() < FAREWELL {
            if self.finish_sends().is_err() {
                break;
            }
            thread::sleep(LONGEST_SLEEP);
        }
        failure
    }

    fn end(&mut self) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        // A group that has failed is left as it is: closing MPI would wait for all ranks.
        if self.failure.is_none()
            && let Err(text) = self.leave_together()
        {
            self.failure = Some(Failure::engine(self.rank, format!("MPI failed at the end: {text}")));
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.end();
        // MPI may still read what was not sent to the end; the process ends soon.
        std::mem::forget(std::mem::take(&mut self.sending));
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
