//! A change of a database's files, encoded as a journal record.
//!
//! ```text
//! kind 80, write   number u64 | file u8 | offset u64 | bytes
//! kind 81, resize  number u64 | file u8 | size u64
//! kind 82, remove  number u64 | file u8
//! ```
//!
//! Numbers are little-endian. Each process has a journal of its own; `number` orders the records of all of
//! them.

use netram_proto::port::RecordKind;
use netram_proto::wire::ByteReader;

/// Record kind: bytes written to a file.
pub const KIND_WRITE: RecordKind = RecordKind(80);
/// Record kind: a new length of a file.
pub const KIND_RESIZE: RecordKind = RecordKind(81);
/// Record kind: a removed file.
pub const KIND_REMOVE: RecordKind = RecordKind(82);
/// Length of the header before the written bytes.
pub const HEADER_BYTES: usize = 17;

/// A file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileRole {
    /// The database file.
    Main,
    /// Its write-ahead log.
    Wal,
    /// Its rollback journal.
    Journal,
}

impl FileRole {
    /// All roles; a role's index is its number in a record.
    pub const ALL: [FileRole; 3] = [FileRole::Main, FileRole::Wal, FileRole::Journal];

    /// Suffix of the file's name after the database's name.
    pub fn suffix(self) -> &'static str {
        match self {
            FileRole::Main => "",
            FileRole::Wal => "-wal",
            FileRole::Journal => "-journal",
        }
    }
}

/// A change of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp<'a> {
    /// Writes bytes; the file is created if needed.
    Write {
        /// First byte to overwrite.
        offset: u64,
        /// Bytes to write.
        bytes: &'a [u8],
    },
    /// Sets the file's length.
    Resize {
        /// New length in bytes.
        size: u64,
    },
    /// Removes the file if it exists.
    Remove,
}

/// A record: a numbered change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseChange<'a> {
    /// Number in the order of all processes' records.
    pub number: u64,
    /// File that is changed.
    pub role: FileRole,
    /// The change.
    pub op: FileOp<'a>,
}

/// Why a record is not a change of a database: it is damaged, or belongs to something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseDecodeError {
    /// No change of a database has this record kind.
    #[error("record kind {0} is not a database change")]
    Kind(u8),
    /// A field is missing or out of range.
    #[error("a field is missing or out of range")]
    Fields,
}

impl<'a> DatabaseChange<'a> {
    /// Kind of the record.
    pub fn kind(&self) -> RecordKind {
        match self.op {
            FileOp::Write { .. } => KIND_WRITE,
            FileOp::Resize { .. } => KIND_RESIZE,
            FileOp::Remove => KIND_REMOVE,
        }
    }

    /// Length of the encoded payload in bytes.
    pub fn payload_bytes(&self) -> usize {
        match self.op {
            FileOp::Write { bytes, .. } => HEADER_BYTES + bytes.len(),
            FileOp::Resize { .. } => HEADER_BYTES,
            FileOp::Remove => HEADER_BYTES - 8,
        }
    }

    /// Encodes the payload into a buffer of [`DatabaseChange::payload_bytes`].
    pub fn encode(&self, into: &mut [u8]) {
        into[..8].copy_from_slice(&self.number.to_le_bytes());
        into[8] = self.role as u8;
        match self.op {
            FileOp::Write { offset, bytes } => {
                into[9..HEADER_BYTES].copy_from_slice(&offset.to_le_bytes());
                into[HEADER_BYTES..].copy_from_slice(bytes);
            }
            FileOp::Resize { size } => into[9..].copy_from_slice(&size.to_le_bytes()),
            FileOp::Remove => (),
        }
    }

    /// Decodes a record. `None` for a record kind that belongs to the journal itself.
    ///
    /// # Errors
    ///
    /// See [`DatabaseDecodeError`].
    pub fn decode(
        kind: RecordKind,
        payload: &'a [u8],
    ) -> Result<Option<DatabaseChange<'a>>, DatabaseDecodeError> {
        if kind.0 < 16 {
            return Ok(None);
        }
        if !(KIND_WRITE.0..=KIND_REMOVE.0).contains(&kind.0) {
            return Err(DatabaseDecodeError::Kind(kind.0));
        }
        let mut from = ByteReader::new(payload);
        let short = |_| DatabaseDecodeError::Fields;
        let (number, role) = (from.u64().map_err(short)?, from.u8().map_err(short)?);
        let role = *FileRole::ALL
            .get(usize::from(role))
            .ok_or(DatabaseDecodeError::Fields)?;
        let deed = match kind {
            KIND_WRITE => FileOp::Write {
                offset: from.u64().map_err(short)?,
                bytes: from.rest(),
            },
            KIND_RESIZE => FileOp::Resize {
                size: from.u64().map_err(short)?,
            },
            _ => FileOp::Remove,
        };
        let change = DatabaseChange {
            number,
            role,
            op: deed,
        };
        match payload.len() == change.payload_bytes() {
            true => Ok(Some(change)),
            false => Err(DatabaseDecodeError::Fields),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<DatabaseChange<'static>> {
        let deeds = [
            FileOp::Write {
                offset: 1 << 40,
                bytes: b"a page",
            },
            FileOp::Resize { size: u64::MAX },
            FileOp::Remove,
        ];
        { FileRole::ALL.into_iter() }
            .flat_map(|role| {
                deeds.map(|deed| DatabaseChange {
                    number: 77,
                    role,
                    op: deed,
                })
            })
            .collect()
    }

    fn payload(change: &DatabaseChange<'_>) -> Vec<u8> {
        let mut payload = vec![0; change.payload_bytes()];
        change.encode(&mut payload);
        payload
    }

    #[test]
    fn every_change_decodes_to_itself() {
        for change in all() {
            assert_eq!(
                DatabaseChange::decode(change.kind(), &payload(&change)),
                Ok(Some(change))
            );
        }
        assert_eq!(DatabaseChange::decode(RecordKind(3), b"the journal's"), Ok(None));
    }

    #[test]
    fn a_truncated_longer_or_foreign_payload_is_refused() {
        for change in all() {
            let payload = payload(&change);
            for cut in 0..payload.len().min(HEADER_BYTES) {
                assert!(DatabaseChange::decode(change.kind(), &payload[..cut]).is_err());
            }
            if change.kind() != KIND_WRITE {
                let longer = [&payload[..], &[0]].concat();
                assert_eq!(
                    DatabaseChange::decode(change.kind(), &longer),
                    Err(DatabaseDecodeError::Fields)
                );
            }
            let mut other = payload.clone();
            other[8] = 3;
            assert_eq!(
                DatabaseChange::decode(change.kind(), &other),
                Err(DatabaseDecodeError::Fields)
            );
        }
        assert_eq!(
            DatabaseChange::decode(RecordKind(64), &[0; 17]),
            Err(DatabaseDecodeError::Kind(64))
        );
    }
}
