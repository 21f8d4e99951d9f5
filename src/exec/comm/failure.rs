//! What can go wrong between ranks, and how it is said.

use crate::ops::{Cause, OpError};

/// Why a group of ranks cannot go on. One failure ends it for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: FailureKind,
    /// The rank that is the reason.
    pub rank: u32,
    /// A message that stands alone.
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// An error on that rank, which it reports itself.
    Failed,
    /// It was stopped by its host.
    Stopped,
    /// Its program ended while others waited for it.
    Ended,
    /// It did not come within the time limit.
    Late,
    /// It called another collective than the others.
    Disagrees,
    /// The engine that connects the ranks failed.
    Engine,
}

impl FailureKind {
    const ALL: [FailureKind; 6] = [
        FailureKind::Failed,
        FailureKind::Stopped,
        FailureKind::Ended,
        FailureKind::Late,
        FailureKind::Disagrees,
        FailureKind::Engine,
    ];
}

/// `rank 1`, `ranks 0, 1 and 3`
pub(crate) fn named(ranks: &[u32]) -> String {
    match ranks {
        [] => "no rank".to_string(),
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u32::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

impl Failure {
    /// Rank `rank` ended with an error of this text.
    pub fn failed(rank: u32, what: &str) -> Failure {
        Failure { kind: FailureKind::Failed, rank, message: format!("rank {rank} failed: {what}") }
    }

    pub fn stopped(rank: u32) -> Failure {
        Failure { kind: FailureKind::Stopped, rank, message: format!("rank {rank} was stopped") }
    }

    pub(in crate::exec) fn engine(rank: u32, message: String) -> Failure {
        Failure { kind: FailureKind::Engine, rank, message }
    }

    /// As it travels between processes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let kind = FailureKind::ALL.iter().position(|k| *k == self.kind).unwrap_or_default() as u8;
        [&[kind][..], &self.rank.to_le_bytes(), self.message.as_bytes()].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Failure> {
        let (kind, rest) = bytes.split_first()?;
        let (rank, message) = rest.split_first_chunk()?;
        let kind = *FailureKind::ALL.get(usize::from(*kind))?;
        Some(Failure {
            kind,
            rank: u32::from_le_bytes(*rank),
            message: String::from_utf8_lossy(message).into_owned(),
        })
    }
}

impl From<Failure> for OpError {
    fn from(failure: Failure) -> OpError {
        let cause = match failure.kind {
            FailureKind::Stopped => Cause::Cancelled,
            FailureKind::Disagrees => Cause::RanksDisagree,
            _ => Cause::OtherRank,
        };
        let error = OpError { cause, ..OpError::new(failure.message) };
        match failure.kind {
            FailureKind::Late => error.help(
                "a rank that takes longer on purpose needs a longer time limit (`--comm-timeout`)",
            ),
            FailureKind::Ended | FailureKind::Disagrees => error.help(
                "every rank calls the same collectives in the same order: let no `if` on `rank` and no number of \
                 batches decide which",
            ),
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_travel() {
        for kind in FailureKind::ALL {
            let failure = Failure { kind, rank: 70_000, message: "rank 70000 is \u{e9}tourdi".into() };
            assert_eq!(Failure::from_bytes(&failure.to_bytes()), Some(failure));
        }
        assert_eq!(Failure::from_bytes(&[0, 1, 2]), None);
        assert_eq!(Failure::from_bytes(&[9, 0, 0, 0, 0]), None);
    }
}
