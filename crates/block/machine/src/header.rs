//! The durable header of a replica: which volume it copies, whether it is whole, and when its client last
//! sent a frame.
//!
//! ```text
//!  0  format u16 | condition u8 | closed u8 | zero u32
//!  8  volume (16)
//! 24  journal (16)
//! 40  since u64             LSN at which it was last whole; all ones: never, or unknown
//! 48  closed at u64         LSN at which the volume was closed, if `closed` is 1
//! 56  contact u64           seconds of the wall clock, for people
//! ```

use netram_proto::id::{JournalId, Lsn};
use netram_proto::wire::{ByteReader, ShortInputError};

use super::message::ReplicaIdentity;

const FORMAT: u16 = 1;
const NEVER: u64 = u64::MAX;
/// Bytes of an encoded header.
const BYTES: usize = 64;

/// Whether a replica can stand in for its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaCondition {
    /// Just created: all blocks are zeros and the log is empty.
    New,
    /// Image and log together are the client's volume as of the log's end.
    Following,
    /// A resync is under way: some blocks are newer than the log, others are out of date.
    Inconsistent {
        /// LSN at which the replica was last whole; blocks that have not changed since are correct. `None`:
        /// no block can be trusted.
        since: Option<Lsn>,
    },
    /// The replica was opened as a volume of its own. It follows no client any more.
    TakenOver,
}

/// The durable header of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaHeader {
    /// The volume and journal that the replica copies.
    pub identity: ReplicaIdentity,
    /// Whether the replica is whole.
    pub condition: ReplicaCondition,
    /// LSN at which the volume was closed, if it has not been opened since as far as this data lender knows.
    pub closed: Option<Lsn>,
    /// When the client last sent a frame, in seconds of the wall clock. Shown to people; decides nothing.
    pub contact: u64,
}

/// Failure to decode a replica's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaHeaderError {
    /// The header was written in another version of the format.
    Format(u16),
    /// The header is truncated or has a field out of bounds.
    Malformed,
}

impl core::fmt::Display for ReplicaHeaderError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReplicaHeaderError::Format(found) => write!(
                out,
                "the replica's header has format {found}, but this version reads only {FORMAT}: use the netram version that wrote it"
            ),
            ReplicaHeaderError::Malformed => {
                out.write_str("the replica's header has a valid checksum but invalid contents")
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
    /// The condition's byte in files and frames, with the LSN at which the replica was last whole.
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
    /// First bytes of each of the file's slots.
    pub const MAGIC: [u8; 8] = *b"NETRAMRP";

    /// Header of a replica that has just been created.
    pub fn new(identity: ReplicaIdentity) -> ReplicaHeader {
        ReplicaHeader {
            identity,
            condition: ReplicaCondition::New,
            closed: None,
            contact: 0,
        }
    }

    /// Encodes the header.
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

    /// Decodes what [`ReplicaHeader::encode`] wrote.
    ///
    /// # Errors
    ///
    /// [`ReplicaHeaderError`] if the format is another one or the bytes are not a whole header.
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
    fn a_header_decodes_to_what_was_encoded_and_never_when_cut_short() {
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
