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

use super::{LockId, LockVersion};
use crate::limit::STAMP_LOCKS_MAX;
use netram_proto::wire::{ByteReader, ShortInputError, put_varint};

/// The locks of one record's transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// What was written under, ascending, with the version that this record makes: at least 1.
    pub written: Vec<(LockId, LockVersion)>,
    /// What was only read under, ascending, with the version that was read.
    pub read: Vec<(LockId, LockVersion)>,
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

    /// The stamp of a record, from its payload: the preamble, behind its length, is the stamp and nothing
    /// else.
    pub fn of(payload: &[u8]) -> Result<Stamp, StampError> {
        let mut preamble = preamble(payload)?;
        let stamp = Stamp::decode(&mut preamble)?;
        match preamble.rest().is_empty() {
            true => Ok(stamp),
            false => Err(StampError::Long),
        }
    }

    /// What a record's stamp says of written locks, without memory for it. For records that have been
    /// checked: it ends where they are none.
    pub fn written_of(payload: &[u8]) -> impl Iterator<Item = (LockId, LockVersion)> {
        let begun = preamble(payload).and_then(|from| Locks::begin(from, 1, STAMP_LOCKS_MAX));
        begun.into_iter().flatten().map_while(Result::ok)
    }

    /// Reads a stamp; the cursor stands behind it afterwards.
    pub fn decode(from: &mut ByteReader<'_>) -> Result<Stamp, StampError> {
        let written = decode_locks(from, 1, STAMP_LOCKS_MAX)?;
        let read = decode_locks(from, 0, STAMP_LOCKS_MAX - written.len())?;
        let twice = |lock| written.binary_search_by_key(&lock, |(lock, _)| *lock).is_ok();
        match read.iter().any(|(lock, _)| twice(*lock)) {
            true => Err(StampError::Order),
            false => Ok(Stamp { written, read }),
        }
    }

    /// Forgets all locks, and keeps the memory.
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

/// Reads one of a stamp's two lists.
struct Locks<'a> {
    from: ByteReader<'a>,
    left: usize,
    before: Option<u32>,
    /// The lowest version that can be.
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
    fn what_cannot_be_is_refused() {
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
