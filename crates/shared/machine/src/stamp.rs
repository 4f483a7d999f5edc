//! Stamp of a record: the locks of its transaction. It precedes the record's ranges, and orders records of
//! several journals.
//!
//! ```text
//! written locks   count, then for each: lock, less the one before; the version that this record makes
//! read locks      the same, with the version that was read
//! ```
//!
//! All numbers are varints ([`ByteReader::varint`]). Locks ascend, each at most once.

use alloc::vec::Vec;
use core::fmt;

use super::{LockId, LockVersion};
use crate::limit::STAMP_LOCKS_MAX;
use netram_proto::wire::{ByteReader, ShortInputError, put_varint};

/// Locks of one record's transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Locks written under, ascending, each with the version that this record makes (at least 1).
    pub written: Vec<(LockId, LockVersion)>,
    /// Locks only read under, ascending, each with the version that was read.
    pub read: Vec<(LockId, LockVersion)>,
}

/// An invalid stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StampError {
    /// The bytes end before the stamp does.
    Short,
    /// The record's preamble has bytes after the stamp.
    Long,
    /// The stamp has more locks than a transaction may hold ([`STAMP_LOCKS_MAX`]).
    TooMany,
    /// The locks do not ascend, or one occurs twice.
    Order,
    /// A written lock has version zero, or a number is out of range.
    Number,
}

impl fmt::Display for StampError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            StampError::Short => "the record's stamp is too short",
            StampError::Long => "the record's preamble has bytes after its stamp",
            StampError::TooMany => "the record's stamp has more locks than a transaction may hold",
            StampError::Order => "the locks of the record's stamp do not ascend",
            StampError::Number => "the record's stamp has an invalid lock or version",
        })
    }
}

impl core::error::Error for StampError {}

impl From<ShortInputError> for StampError {
    fn from(_: ShortInputError) -> StampError {
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

    /// Reads the stamp of a record from its payload. The preamble, which follows its length, must be the
    /// stamp and nothing else.
    ///
    /// # Errors
    ///
    /// [`StampError`] if the preamble is no valid stamp.
    pub fn of(payload: &[u8]) -> Result<Stamp, StampError> {
        let mut preamble = preamble(payload)?;
        let stamp = Stamp::decode(&mut preamble)?;
        match preamble.rest().is_empty() {
            true => Ok(stamp),
            false => Err(StampError::Long),
        }
    }

    /// Iterates over the written locks of a record's stamp without allocating. It is for records that were
    /// checked; it stops at the first invalid lock.
    pub fn written_of(payload: &[u8]) -> impl Iterator<Item = (LockId, LockVersion)> {
        let begun = preamble(payload).and_then(|from| Locks::begin(from, 1, STAMP_LOCKS_MAX));
        begun.into_iter().flatten().map_while(Result::ok)
    }

    /// Reads a stamp, and leaves the reader after it.
    ///
    /// # Errors
    ///
    /// [`StampError`] if the bytes are no valid stamp.
    pub fn decode(from: &mut ByteReader<'_>) -> Result<Stamp, StampError> {
        let written = decode_locks(from, 1, STAMP_LOCKS_MAX)?;
        let read = decode_locks(from, 0, STAMP_LOCKS_MAX - written.len())?;
        let twice = |lock| written.binary_search_by_key(&lock, |(lock, _)| *lock).is_ok();
        match read.iter().any(|(lock, _)| twice(*lock)) {
            true => Err(StampError::Order),
            false => Ok(Stamp { written, read }),
        }
    }

    /// Removes all locks and keeps the memory.
    pub fn clear(&mut self) {
        self.written.clear();
        self.read.clear();
    }
}

fn preamble(payload: &[u8]) -> Result<ByteReader<'_>, StampError> {
    let mut payload = ByteReader::new(payload);
    let length = usize::try_from(payload.varint()?).map_err(|_| StampError::Short)?;
    Ok(ByteReader::new(payload.bytes(length)?))
}

/// Reader of one of a stamp's two lists.
struct Locks<'a> {
    from: ByteReader<'a>,
    left: usize,
    before: Option<u32>,
    /// Lowest valid version.
    least: u64,
}

impl<'a> Locks<'a> {
    fn begin(mut from: ByteReader<'a>, least: u64, most: usize) -> Result<Locks<'a>, StampError> {
        let count = from.varint()?;
        let left = usize::try_from(count).ok().filter(|count| *count <= most);
        Ok(Locks {
            from,
            left: left.ok_or(StampError::TooMany)?,
            before: None,
            least,
        })
    }

    fn step(&mut self) -> Result<(LockId, LockVersion), StampError> {
        let step = self.from.varint()?;
        let lock = self.before.map_or(0, u64::from).checked_add(step);
        let lock = lock.and_then(|lock| u32::try_from(lock).ok());
        let lock = lock.ok_or(StampError::Number)?;
        if self.before == Some(lock) {
            return Err(StampError::Order);
        }
        let version = self.from.varint()?;
        if version < self.least {
            return Err(StampError::Number);
        }
        self.before = Some(lock);
        Ok((LockId(lock), LockVersion(version)))
    }
}

impl Iterator for Locks<'_> {
    type Item = Result<(LockId, LockVersion), StampError>;

    fn next(&mut self) -> Option<Result<(LockId, LockVersion), StampError>> {
        self.left = self.left.checked_sub(1)?;
        Some(self.step())
    }
}

fn decode_locks(
    from: &mut ByteReader<'_>,
    least: u64,
    most: usize,
) -> Result<Vec<(LockId, LockVersion)>, StampError> {
    let mut list = Locks::begin(*from, least, most)?;
    let mut locks = Vec::with_capacity(list.left);
    for lock in &mut list {
        locks.push(lock?);
    }
    *from = list.from;
    Ok(locks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_locks_are_read_without_the_rest() {
        let stamp = Stamp {
            written: [(3, 9), (700, 1 << 40)]
                .map(|(lock, version)| (LockId(lock), LockVersion(version)))
                .to_vec(),
            read: [(LockId(4), LockVersion(0))].to_vec(),
        };
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        stamp.encode(&mut bytes);
        put_varint(&mut payload, bytes.len() as u64);
        payload.extend_from_slice(&bytes);
        assert!(Stamp::written_of(&payload).eq(stamp.written.iter().copied()));
        assert_eq!(Stamp::of(&payload), Ok(stamp));
        assert_eq!(Stamp::written_of(&payload[..4]).count(), 0);
    }

    #[test]
    fn invalid_stamps_are_refused() {
        let refused = |bytes: &[u8]| Stamp::decode(&mut ByteReader::new(bytes)).unwrap_err();
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
