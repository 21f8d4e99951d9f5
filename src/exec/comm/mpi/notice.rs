//! What ranks tell each other beside the data of collectives.

use crate::exec::comm::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Notice {
    /// The group has failed.
    Failed(Failure),
    /// How far have you come? asks this rank.
    Question { from: u32 },
    /// The device of this rank has come to number `count`.
    Came { from: u32, count: u64 },
}

/// The first byte of each kind.
const FAILED: u8 = 0;
const QUESTION: u8 = 1;
const CAME: u8 = 2;

impl Notice {
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Notice::Failed(failure) => [&[FAILED][..], &failure.to_bytes()].concat(),
            Notice::Question { from } => [&[QUESTION][..], &from.to_le_bytes()].concat(),
            Notice::Came { from, count } => [&[CAME][..], &from.to_le_bytes(), &count.to_le_bytes()].concat(),
        }
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Notice> {
        let (kind, rest) = bytes.split_first()?;
        match *kind {
            FAILED => Failure::from_bytes(rest).map(Notice::Failed),
            QUESTION => Some(Notice::Question { from: u32::from_le_bytes(rest.try_into().ok()?) }),
            CAME => {
                let (from, count) = rest.split_first_chunk()?;
                let (from, count) = (u32::from_le_bytes(*from), u64::from_le_bytes(count.try_into().ok()?));
                Some(Notice::Came { from, count })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_travel() {
        let failure = Failure::failed(7, "a reason");
        for notice in [
            Notice::Failed(failure),
            Notice::Question { from: 70_000 },
            Notice::Came { from: 3, count: u64::MAX },
        ] {
            assert_eq!(Notice::from_bytes(&notice.to_bytes()), Some(notice));
        }
        for broken in [&[][..], &[3], &[QUESTION, 1], &[CAME, 0, 0, 0, 0, 1], &[FAILED]] {
            assert_eq!(Notice::from_bytes(broken), None);
        }
    }
}
