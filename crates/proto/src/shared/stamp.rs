//! What a record says of locks. It stands before the record's ranges, and orders records of several journals.
//!
//! ```text
//! written locks   count, then for each: lock, less the one before; the version that this record makes
//! read locks      the same, with the version that was read
//! ```
//!
//! All numbers are varints ([`Cursor::varint`]). Locks ascend, and none stands twice.

use alloc::vec::Vec;
use core::fmt;

use super::{LockId, Version};
use crate::limit::STAMP_LOCKS_MAX;
use crate::wire::{Cursor, Short, put_varint};

/// The locks of one record's transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// What was written under, ascending, with the version that this record makes: at least 1.
    pub written: Vec<(LockId, Version)>,
    /// What was only read under, ascending, with the version that was read.
    pub read: Vec<(LockId, Version)>,
}

/// Why bytes are no stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampError {
    /// They end before it does.
    Short,
    /// There is something behind it in the record's preamble.
    Long,
    /// More locks than a transaction may hold ([`STAMP_LOCKS_MAX`]).
    TooMany,
    /// Locks do not ascend, or one is there twice.
    Order,
    /// A written lock at version zero, or a number beyond what it counts.
    Number,
}

impl fmt::Display for StampError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StampError::Short => "the stamp is cut short",
            StampError::Long => "the record's preamble is more than a stamp",
            StampError::TooMany => "the stamp has more locks than a transaction may hold",
            StampError::Order => "the stamp's locks do not ascend",
            StampError::Number => "the stamp has a lock or a version that cannot be",
        })
    }
}

impl core::error::Error for StampError {}

impl From<Short> for StampError {
    fn from(_: Short) -> StampError {
        StampError::Short
    }
}

impl Stamp {
    /// Appends the stamp's bytes.
    pub fn encode(&self, to: &mut Vec<u8>) {
        for locks in [&self.written, &self.read] {
            put_varint(to, locks.len() as u64);
            let mut before = 0;
            for (lock, version) in locks {
                put_varint(to, u64::from(lock.0 - before));
                put_varint(to, version.0);
                before = lock.0;
            }
        }
    }

    /// The stamp of a record, from its payload: the preamble, behind its length, is the stamp and nothing else.
    pub fn of(payload: &[u8]) -> Result<Stamp, StampError> {
        let mut payload = Cursor::new(payload);
        let length = usize::try_from(payload.varint()?).map_err(|_| StampError::Short)?;
        let mut preamble = Cursor::new(payload.bytes(length)?);
        let stamp = Stamp::decode(&mut preamble)?;
        match preamble.rest().is_empty() {
            true => Ok(stamp),
            false => Err(StampError::Long),
        }
    }

    /// Reads a stamp; the cursor stands behind it afterwards.
    pub fn decode(from: &mut Cursor<'_>) -> Result<Stamp, StampError> {
        let written = decode_locks(from, 1, STAMP_LOCKS_MAX)?;
        let read = decode_locks(from, 0, STAMP_LOCKS_MAX - written.len())?;
        let twice = |lock| written.binary_search_by_key(&lock, |(lock, _)| *lock).is_ok();
        match read.iter().any(|(lock, _)| twice(*lock)) {
            true => Err(StampError::Order),
            false => Ok(Stamp { written, read }),
        }
    }
}

fn decode_locks(
    from: &mut Cursor<'_>,
    least: u64,
    most: usize,
) -> Result<Vec<(LockId, Version)>, StampError> {
    let count = from.varint()?;
    let count = usize::try_from(count).ok().filter(|count| *count <= most);
    let count = count.ok_or(StampError::TooMany)?;
    let mut locks = Vec::with_capacity(count);
    let mut before = None;
    for _ in 0..count {
        let step = from.varint()?;
        let lock = before.map_or(0, u64::from).checked_add(step);
        let lock = lock.and_then(|lock| u32::try_from(lock).ok());
        let lock = lock.ok_or(StampError::Number)?;
        if before == Some(lock) {
            return Err(StampError::Order);
        }
        let version = from.varint()?;
        if version < least {
            return Err(StampError::Number);
        }
        locks.push((LockId(lock), Version(version)));
        before = Some(lock);
    }
    Ok(locks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |bytes: &[u8]| Stamp::decode(&mut Cursor::new(bytes)).unwrap_err();
        // A lock twice; one that was written and read; a write that made version zero; lock 2^32; 2^40 locks.
        assert_eq!(refused(&[2, 5, 1, 0, 1, 0]), StampError::Order);
        assert_eq!(refused(&[1, 5, 1, 1, 5, 1]), StampError::Order);
        assert_eq!(refused(&[1, 5, 0, 0]), StampError::Number);
        assert_eq!(
            refused(&[1, 0x80, 0x80, 0x80, 0x80, 0x10, 1, 0]),
            StampError::Number
        );
        assert_eq!(
            refused(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x20]),
            StampError::TooMany
        );
    }
}
