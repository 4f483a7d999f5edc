//! What a replica's file says: whose replica it is, whether it is whole, and when its client was last heard.
//!
//! ```text
//!  0  format u16 | condition u8 | closed u8 | zero u32
//!  8  volume (16)
//! 24  journal (16)
//! 40  since u64             where it was last whole; all ones: never, or not known
//! 48  closed at u64         the volume was closed with its log here, if `closed`
//! 56  contact u64           seconds of the wall clock, for people
//! ```

use netram_proto::id::{JournalId, Lsn};
use netram_proto::wire::{ByteReader, ShortInputError};

use super::message::ReplicaIdentity;

const FORMAT: u16 = 1;
const NEVER: u64 = u64::MAX;
/// Bytes of a standing.
const BYTES: usize = 64;

/// Whether a replica can stand in for its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaCondition {
    /// Just made: blocks of zeros, an empty log.
    New,
    /// Image and log together are the client's volume as of the log's end.
    Following,
    /// Blocks are being sent anew: some are newer than the log, others are old.
    Inconsistent {
        /// It was whole when its log ended here, and blocks that have not changed since are right; `None`:
        /// not so.
        since: Option<Lsn>,
    },
    /// It was opened as a volume here. It follows nobody any more.
    TakenOver,
}

/// What a replica's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHeader {
    /// Whose replica it is.
    pub identity: ReplicaIdentity,
    /// Whether it is whole.
    pub condition: ReplicaCondition,
    /// The volume was closed when its log ended here, and has not been opened since as far as this data
    /// lender was told.
    pub closed: Option<Lsn>,
    /// When its client was last heard, in seconds of the wall clock. Decides nothing.
    pub contact: u64,
}

/// The payload of a replica's file makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaHeaderError {
    /// Written by another version of the format.
    Format(u16),
    /// Cut off or with a field out of bounds.
    Malformed,
}

impl core::fmt::Display for ReplicaHeaderError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReplicaHeaderError::Format(found) => write!(
                out,
                "the replica's file has format {found}, this version reads {FORMAT}; use the version that wrote it"
            ),
            ReplicaHeaderError::Malformed => {
                out.write_str("the replica's file makes no sense although its checksum holds")
            }
        }
    }
}

impl core::error::Error for ReplicaHeaderError {}

impl From<ShortInputError> for ReplicaHeaderError {
    fn from(_: ShortInputError) -> ReplicaHeaderError {
        ReplicaHeaderError::Malformed
    }
}

impl ReplicaCondition {
    /// As the byte that files and frames have, and where it was last whole.
    pub(super) fn encode(self) -> (u8, u64) {
        match self {
            ReplicaCondition::New => (0, NEVER),
            ReplicaCondition::Following => (1, NEVER),
            ReplicaCondition::Inconsistent { since } => (2, since.map_or(NEVER, |lsn| lsn.0)),
            ReplicaCondition::TakenOver => (3, NEVER),
        }
    }

    pub(super) fn decode(byte: u8, since: u64) -> Option<ReplicaCondition> {
        Some(match byte {
            0 => ReplicaCondition::New,
            1 => ReplicaCondition::Following,
            2 => ReplicaCondition::Inconsistent {
                since: (since != NEVER).then_some(Lsn(since)),
            },
            3 => ReplicaCondition::TakenOver,
            _ => return None,
        })
    }
}

impl core::fmt::Display for ReplicaCondition {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReplicaCondition::New => out.write_str("empty"),
            ReplicaCondition::Following => out.write_str("following"),
            ReplicaCondition::Inconsistent { .. } => out.write_str("inconsistent: a resync has not ended"),
            ReplicaCondition::TakenOver => out.write_str("taken over"),
        }
    }
}

impl ReplicaHeader {
    /// The first bytes of the file's slots.
    pub const MAGIC: [u8; 8] = *b"NETRAMRP";

    /// Of a replica that has just been made.
    pub fn new(identity: ReplicaIdentity) -> ReplicaHeader {
        ReplicaHeader {
            identity,
            condition: ReplicaCondition::New,
            closed: None,
            contact: 0,
        }
    }

    /// The standing as bytes.
    pub fn encode(&self) -> [u8; BYTES] {
        let (condition, since) = self.condition.encode();
        let mut bytes = [0; BYTES];
        bytes[0..2].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[2] = condition;
        bytes[3] = u8::from(self.closed.is_some());
        bytes[8..24].copy_from_slice(&self.identity.volume.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.identity.journal.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&since.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.closed.unwrap_or_default().0.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.contact.to_le_bytes());
        bytes
    }

    /// Reads what [`ReplicaHeader::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<ReplicaHeader, ReplicaHeaderError> {
        let mut cursor = ByteReader::new(bytes);
        let format = cursor.u16()?;
        if format != FORMAT {
            return Err(ReplicaHeaderError::Format(format));
        }
        let (condition, closed) = (cursor.u8()?, cursor.u8()?);
        cursor.u32()?;
        let identity = ReplicaIdentity {
            volume: cursor.u128()?,
            journal: JournalId(cursor.u128()?),
        };
        let condition =
            ReplicaCondition::decode(condition, cursor.u64()?).ok_or(ReplicaHeaderError::Malformed)?;
        let closed_at = Lsn(cursor.u64()?);
        let contact = cursor.u64()?;
        if closed > 1 || !cursor.rest().is_empty() {
            return Err(ReplicaHeaderError::Malformed);
        }
        Ok(ReplicaHeader {
            identity,
            condition,
            closed: (closed == 1).then_some(closed_at),
            contact,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_is_read_as_it_was_written_and_not_otherwise() {
        let identity = ReplicaIdentity {
            volume: 7,
            journal: JournalId(9),
        };
        let conditions = [
            ReplicaCondition::New,
            ReplicaCondition::Following,
            ReplicaCondition::Inconsistent { since: None },
            ReplicaCondition::Inconsistent { since: Some(Lsn(64)) },
            ReplicaCondition::TakenOver,
        ];
        for condition in conditions {
            for closed in [None, Some(Lsn(4096))] {
                let standing = ReplicaHeader {
                    identity,
                    condition,
                    closed,
                    contact: 1,
                };
                let bytes = standing.encode();
                assert_eq!(ReplicaHeader::decode(&bytes), Ok(standing));
                for cut in 0..bytes.len() {
                    assert!(ReplicaHeader::decode(&bytes[..cut]).is_err(), "cut at {cut}");
                }
            }
        }
        let mut bytes = ReplicaHeader::new(identity).encode();
        bytes[2] = 9;
        assert_eq!(ReplicaHeader::decode(&bytes), Err(ReplicaHeaderError::Malformed));
    }
}
