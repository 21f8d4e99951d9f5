//! Ranks as threads of this process, with a mailbox for each pair of them.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Comm, Failure, Watch,
    exchange::Exchange,
    transport::{Lost, Transport},
};
use crate::guard;

/// How often a rank that sleeps looks whether its host has stopped it: a stop wakes nobody.
const LOOK: Duration = Duration::from_millis(20);

/// The ends of a group of ranks that are threads of this process. Each goes to the thread of its
/// rank; dropping one ends the rank. `limit` is how long a rank waits for another one.
pub fn threads(world: u32, limit: Duration) -> Vec<Box<dyn Comm>> {
    let group = Arc::new(Group::new(world));
    (0..world)
        .map(|rank| {
            let end = Thread { rank, group: Arc::clone(&group) };
            Box::new(Exchange::new(end, limit)) as Box<dyn Comm>
        })
        .collect()
}

/// What the ranks share.
struct Group {
    world: u32,
    state: Mutex<State>,
    /// One per rank: a message for it, an end or a failure.
    changed: Vec<Condvar>,
}

struct State {
    /// By receiver, then by sender.
    boxes: Vec<Vec<VecDeque<Vec<u8>>>>,
    ended: Vec<bool>,
    /// How far devices have come.
    came: Vec<u64>,
    failure: Option<Failure>,
}

impl Group {
    fn new(world: u32) -> Group {
        let n = world as usize;
        let boxes = (0..n).map(|_| (0..n).map(|_| VecDeque::new()).collect()).collect();
        let state = State { boxes, ended: vec![false; n], came: vec![0; n], failure: None };
        Group { world, state: Mutex::new(state), changed: (0..n).map(|_| Condvar::new()).collect() }
    }

    /// No rank panics while it holds the lock, and what it guards is whole at all times.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        self.changed.iter().for_each(Condvar::notify_all);
    }

    fn fail(&self, failure: Failure) -> Failure {
        let first = self.lock().failure.get_or_insert(failure).clone();
        self.wake_all();
        first
    }
}

/// One rank's end.
struct Thread {
    rank: u32,
    group: Arc<Group>,
}

impl Transport for Thread {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.group.world
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Lost> {
        let mut state = self.group.lock();
        if let Some(failure) = &state.failure {
            return Err(Lost::Failed(failure.clone()));
        }
        // What nobody will take is not kept.
        if state.ended.get(to as usize).copied().unwrap_or(true) {
            return Err(Lost::Ended);
        }
        if let Some(queue) = state.boxes.get_mut(to as usize).and_then(|b| b.get_mut(self.rank as usize)) {
            queue.push_back(message);
        }
        drop(state);
        if let Some(changed) = self.group.changed.get(to as usize) {
            changed.notify_all();
        }
        Ok(())
    }

    fn receive(&mut self, from: u32, limit: Duration) -> Result<Vec<u8>, Lost> {
        let Some(changed) = self.group.changed.get(self.rank as usize) else {
            return Err(Lost::Engine("a rank that the group does not have".into()));
        };
        let begin = Instant::now();
        let mut state = self.group.lock();
        loop {
            let queue = state.boxes.get_mut(self.rank as usize).and_then(|b| b.get_mut(from as usize));
            if let Some(message) = queue.and_then(VecDeque::pop_front) {
                return Ok(message);
            }
            if let Some(failure) = &state.failure {
                return Err(Lost::Failed(failure.clone()));
            }
            if state.ended.get(from as usize).copied().unwrap_or(true) {
                return Err(Lost::Ended);
            }
            if guard::cancelled() {
                return Err(Lost::Stopped);
            }
            let Some(left) = limit.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) else {
                return Err(Lost::Late);
            };
            state = changed.wait_timeout(state, left.min(LOOK)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn failure(&self) -> Option<Failure> {
        self.group.lock().failure.clone()
    }

    fn watch(&self) -> Arc<dyn Watch> {
        Arc::new(Beside { rank: self.rank, group: Arc::clone(&self.group) })
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        self.group.fail(failure)
    }

    fn end(&mut self) {
        if let Some(ended) = self.group.lock().ended.get_mut(self.rank as usize) {
            *ended = true;
        }
        self.group.wake_all();
    }
}

/// The group as a rank sees it that waits for its device.
struct Beside {
    rank: u32,
    group: Arc<Group>,
}

impl Watch for Beside {
    fn failure(&self) -> Option<Failure> {
        self.group.lock().failure.clone()
    }

    fn fail(&self, failure: Failure) -> Failure {
        self.group.fail(failure)
    }

    fn came(&self, count: u64) {
        if let Some(came) = self.group.lock().came.get_mut(self.rank as usize) {
            *came = count;
        }
    }

    fn behind(&self, count: u64) -> Vec<u32> {
        let state = self.group.lock();
        (0..).zip(&state.came).filter(|(_, came)| **came < count).map(|(rank, _)| rank).collect()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.end();
    }
}
