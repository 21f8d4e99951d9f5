//! Bytes that one session has taken: charged before they are allocated, given back when they are
//! dropped.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// An account of bytes with a limit.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    used: AtomicU64,
    most: AtomicU64,
}

/// Bytes that were charged; dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Ledger>,
    bytes: u64,
}

/// Memory that the limit does not allow, or that the system does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What it was wanted for: a type, a file, the memory of a step.
    pub what: String,
    /// The bytes that were wanted.
    pub bytes: u64,
    /// Bytes in use and their limit, where the limit was in the way and not the system.
    pub limit: Option<(u64, u64)>,
}

impl Default for Ledger {
    /// Without a limit.
    fn default() -> Self {
        Ledger::new(u64::MAX)
    }
}

impl Ledger {
    /// An empty account that holds at most `limit` bytes.
    pub fn new(limit: u64) -> Ledger {
        Ledger { limit, used: AtomicU64::new(0), most: AtomicU64::new(0) }
    }

    /// Bytes in use now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most bytes that were in use at once.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }

    /// The most bytes that may be in use at once.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether `bytes` more would fit now. Nothing is charged.
    pub fn allows(&self, bytes: u64, what: &dyn fmt::Display) -> Result<(), OutOfMemory> {
        let used = self.used();
        if bytes <= self.limit.saturating_sub(used) {
            return Ok(());
        }
        Err(OutOfMemory { what: what.to_string(), bytes, limit: Some((used, self.limit)) })
    }

    /// Takes `bytes`, or says why they do not fit.
    pub fn charge(self: &Arc<Self>, bytes: u64, what: &dyn fmt::Display) -> Result<Charge, OutOfMemory> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|&sum| sum <= self.limit)
        });
        match taken {
            Ok(before) => {
                self.most.fetch_max(before + bytes, Ordering::Relaxed);
                Ok(Charge { ledger: Arc::clone(self), bytes })
            }
            Err(used) => Err(OutOfMemory { what: what.to_string(), bytes, limit: Some((used, self.limit)) }),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl OutOfMemory {
    /// The system did not give the memory.
    pub(crate) fn system(what: &dyn fmt::Display, bytes: u64) -> OutOfMemory {
        OutOfMemory { what: what.to_string(), bytes, limit: None }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OutOfMemory { what, bytes, .. } = self;
        match self.limit {
            Some((used, limit)) => write!(
                f,
                "{what} needs {bytes} bytes, and {used} of the {limit} bytes of `max_host_bytes` are in use"
            ),
            None => write!(f, "{what} needs {bytes} bytes, and the system does not have them"),
        }
    }
}

impl std::error::Error for OutOfMemory {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_and_go_back() {
        let ledger = Arc::new(Ledger::new(100));
        let first = ledger.charge(60, &"a").expect("it fits");
        let error = ledger.charge(41, &"f32[4]").expect_err("it does not fit");
        assert_eq!(
            error.to_string(),
            "f32[4] needs 41 bytes, and 60 of the 100 bytes of `max_host_bytes` are in use"
        );
        let second = ledger.charge(40, &"b").expect("it fits exactly");
        drop(first);
        assert_eq!((ledger.used(), ledger.most()), (40, 100));
        drop(second);
        assert!(ledger.charge(u64::MAX, &"c").is_err() && ledger.used() == 0);
    }
}
