//! The messages of one rank: those on their way, and what others have told.

use std::{
    collections::VecDeque,
    thread,
    time::{Duration, Instant},
};

use super::{
    LONGEST_SLEEP, Sleep,
    library::{Library, Sending},
    notice::Notice,
};
use crate::{
    exec::comm::{Failure, FailureKind, seconds, transport::Lost},
    guard,
};

/// Tags of messages: of collectives, of what ranks tell each other beside, of the end of a rank.
const DATA: i32 = 1;
const NOTICE: i32 = 2;
const END: i32 = 3;

/// How long a rank that has failed goes on telling others before it leaves.
const FAREWELL: Duration = Duration::from_millis(500);

pub(super) struct Messages {
    library: Library,
    /// Messages that MPI still reads.
    sending: Vec<Sending>,
    failure: Option<Failure>,
    /// How far the device of this rank has come.
    count: u64,
    /// What the others have said of theirs since they were asked last.
    answers: Vec<Option<u64>>,
    has_ended: bool,
    /// How long another rank may take to come to the end.
    limit: Duration,
}

impl Messages {
    pub fn new(library: Library, limit: Duration) -> Messages {
        let answers = vec![None; library.world() as usize];
        Messages { library, sending: Vec::new(), failure: None, count: 0, answers, has_ended: false, limit }
    }

    pub fn rank(&self) -> u32 {
        self.library.rank()
    }

    pub fn world(&self) -> u32 {
        self.library.world()
    }

    pub fn failure(&self) -> Option<Failure> {
        self.failure.clone()
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let me = self.rank();
        (0..self.world()).filter(move |&rank| rank != me)
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

    /// Data for another rank.
    pub fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Lost> {
        if let Some(failure) = &self.failure {
            return Err(Lost::Failed(failure.clone()));
        }
        self.post(to, DATA, message).map_err(Lost::Engine)
    }

    /// Takes what other ranks have told, and answers their questions.
    pub fn listen(&mut self) -> Result<(), String> {
        if self.has_ended {
            return Ok(());
        }
        while self.failure.is_none()
            && let Some(incoming) = self.library.probe(None, NOTICE)?
        {
            match Notice::from_bytes(&self.library.receive(incoming)?) {
                Some(Notice::Failed(failure)) => self.failure = Some(failure),
                Some(Notice::Question { from }) if from < self.world() => {
                    let answer = Notice::Came { from: self.rank(), count: self.count };
                    // One that has ended does not hear it.
                    let _ = self.post(from, NOTICE, answer.to_bytes());
                }
                Some(Notice::Came { from, count }) => {
                    if let Some(answer) = self.answers.get_mut(from as usize) {
                        *answer = Some(count);
                    }
                }
                Some(Notice::Question { .. }) | None => {}
            }
        }
        Ok(())
    }

    pub fn came(&mut self, count: u64) {
        self.count = count;
    }

    /// The ranks that have not said since the last call that they have come to `count`. All are asked again.
    pub fn behind(&mut self, count: u64) -> Vec<u32> {
        if self.has_ended || self.listen().is_err() {
            return Vec::new();
        }
        let has_come = |rank: &u32| matches!(self.answers.get(*rank as usize), Some(Some(c)) if *c >= count);
        let behind = self.others().filter(|rank| !has_come(rank)).collect();
        self.answers.fill(None);
        let question = Notice::Question { from: self.rank() }.to_bytes();
        for to in self.others() {
            // Whoever cannot be asked does not answer.
            let _ = self.post(to, NOTICE, question.clone());
        }
        behind
    }

    fn take(&mut self, from: u32) -> Result<Option<Vec<u8>>, String> {
        match self.library.probe(Some(from), DATA)? {
            Some(incoming) => self.library.receive(incoming).map(Some),
            None => Ok(None),
        }
    }

    /// One look for a message of `from`.
    pub fn look(&mut self, from: u32) -> Result<Option<Result<Vec<u8>, Lost>>, String> {
        self.finish_sends()?;
        if let Some(message) = self.take(from)? {
            return Ok(Some(Ok(message)));
        }
        self.listen()?;
        if let Some(failure) = &self.failure {
            return Ok(Some(Err(Lost::Failed(failure.clone()))));
        }
        if self.library.probe(Some(from), END)?.is_some() {
            // What it sent before has come before.
            let last = self.take(from)?;
            return Ok(Some(last.ok_or(Lost::Ended)));
        }
        Ok(None)
    }

    /// Tells all ranks. The first failure of a group counts; what came first is returned.
    pub fn fail(&mut self, failure: Failure) -> Failure {
        if let Some(first) = &self.failure {
            return first.clone();
        }
        self.failure = Some(failure.clone());
        if self.has_ended {
            return failure;
        }
        // Whoever cannot be told finds out by the time limit.
        let notice = Notice::Failed(failure.clone()).to_bytes();
        for to in self.others() {
            let _ = self.post(to, NOTICE, notice.clone());
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

    /// Nothing comes from this rank any more.
    pub fn end(&mut self) {
        if self.has_ended {
            return;
        }
        // A group that has failed is left as it is: closing MPI would wait for all ranks.
        if self.failure.is_none()
            && let Err(text) = self.leave_together()
        {
            self.failure = Some(Failure::engine(self.rank(), format!("MPI failed at the end: {text}")));
        }
        self.has_ended = true;
        // MPI may still read what was not sent to the end; the process ends soon.
        std::mem::forget(std::mem::take(&mut self.sending));
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
            self.listen()?;
            // What another rank waits for will not come: it reports that.
            if self.failure.is_some() || guard::cancelled() {
                return Ok(());
            }
            if begin.elapsed() >= self.limit {
                let message = format!("rank {rank} did not come to its end within {}", seconds(self.limit));
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
