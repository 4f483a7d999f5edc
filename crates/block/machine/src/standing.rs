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
use netram_proto::wire::{Cursor, Short};

use super::message::Identity;

const FORMAT: u16 = 1;
const NEVER: u64 = u64::MAX;
/// Bytes of a standing.
const BYTES: usize = 64;

/// Whether a replica can stand in for its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Just made: blocks of zeros, an empty log.
    New,
    /// Image and log together are the client's volume as of the log's end.
    Following,
    /// Blocks are being sent anew: some are newer than the log, others are old.
    Inconsistent {
        /// It was whole when its log ended here, and blocks that have not changed since are right; `None`: not so.
        since: Option<Lsn>,
    },
    /// It was opened as a volume here. It follows nobody any more.
    TakenOver,
}

/// What a replica's file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whose replica it is.
    pub identity: Identity,
    /// Whether it is whole.
    pub condition: Condition,
    /// The volume was closed when its log ended here, and has not been opened since as far as this data lender was told.
    pub closed: Option<Lsn>,
    /// When its client was last heard, in seconds of the wall clock. Decides nothing.
    pub contact: u64,
}

/// The payload of a replica's file makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandingError {
    /// Written by another version of the format.
    Format(u16),
    /// Cut off or with a field out of bounds.
    Malformed,
}

impl core::fmt::Display for StandingError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            StandingError::Format(found) => write!(
                out,
                "the replica's file has format {found}, this version reads {FORMAT}; use the version that wrote it"
            ),
            StandingError::Malformed => {
                out.write_str("the replica's file makes no sense although its checksum holds")
            }
        }
    }
}

impl core::error::Error for StandingError {}

impl From<Short> for StandingError {
    fn from(_: Short) -> StandingError {
        StandingError::Malformed
    }
}

impl Condition {
    /// As the byte that files and frames have, and where it was last whole.
    pub(super) fn encode(self) -> (u8, u64) {
        match self {
            Condition::New => (0, NEVER),
            Condition::Following => (1, NEVER),
            Condition::Inconsistent { since } => (2, since.map_or(NEVER, |lsn| lsn.0)),
            Condition::TakenOver => (3, NEVER),
        }
    }

    pub(super) fn decode(byte: u8, since: u64) -> Option<Condition> {
        Some(match byte {
            0 => Condition::New,
            1 => Condition::Following,
            2 => Condition::Inconsistent {
                since: (since != NEVER).then_some(Lsn(since)),
            },
            3 => Condition::TakenOver,
            _ => return None,
        })
    }
}

impl core::fmt::Display for Condition {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Condition::New => out.write_str("empty"),
            Condition::Following => out.write_str("following"),
            Condition::Inconsistent { .. } => out.write_str("inconsistent: a resync has not ended"),
            Condition::TakenOver => out.write_str("taken over"),
        }
    }
}

impl Standing {
    /// The first bytes of the file's slots.
    pub const MAGIC: [u8; 8] = *b"NETRAMRP";

    /// Of a replica that has just been made.
    pub fn new(identity: Identity) -> Standing {
        Standing {
            identity,
            condition: Condition::New,
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

    /// Reads what [`Standing::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Standing, StandingError> {
        let mut cursor = Cursor::new(bytes);
        let format = cursor.u16()?;
        if format != FORMAT {
            return Err(StandingError::Format(format));
        }
        let (condition, closed) = (cursor.u8()?, cursor.u8()?);
        cursor.u32()?;
        let identity = Identity {
            volume: cursor.u128()?,
            journal: JournalId(cursor.u128()?),
        };
        let condition = Condition::decode(condition, cursor.u64()?).ok_or(StandingError::Malformed)?;
        let closed_at = Lsn(cursor.u64()?);
        let contact = cursor.u64()?;
        if closed > 1 || !cursor.rest().is_empty() {
            return Err(StandingError::Malformed);
        }
        Ok(Standing {
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
        let identity = Identity {
            volume: 7,
            journal: JournalId(9),
        };
        let conditions = [
            Condition::New,
            Condition::Following,
            Condition::Inconsistent { since: None },
            Condition::Inconsistent { since: Some(Lsn(64)) },
            Condition::TakenOver,
        ];
        for condition in conditions {
            for closed in [None, Some(Lsn(4096))] {
                let standing = Standing {
                    identity,
                    condition,
                    closed,
                    contact: 1,
                };
                let bytes = standing.encode();
                assert_eq!(Standing::decode(&bytes), Ok(standing));
                for cut in 0..bytes.len() {
                    assert!(Standing::decode(&bytes[..cut]).is_err(), "cut at {cut}");
                }
            }
        }
        let mut bytes = Standing::new(identity).encode();
        bytes[2] = 9;
        assert_eq!(Standing::decode(&bytes), Err(StandingError::Malformed));
    }
}
