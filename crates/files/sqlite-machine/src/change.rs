//! What is done to a database's files, as a journal has it.
//!
//! ```text
//! kind 80, write   number u64 | file u8 | offset u64 | bytes
//! kind 81, resize  number u64 | file u8 | size u64
//! kind 82, remove  number u64 | file u8
//! ```
//!
//! Little endian. Each process has a journal of its own; the number says in which order records of all of
//! them are.

use netram_proto::port::RecordKind;
use netram_proto::wire::ByteReader;

/// Bytes are written.
pub const KIND_WRITE: RecordKind = RecordKind(80);
/// A file gets a length.
pub const KIND_RESIZE: RecordKind = RecordKind(81);
/// A file is removed.
pub const KIND_REMOVE: RecordKind = RecordKind(82);
/// Bytes before those that are written.
pub const HEADER_BYTES: usize = 17;

/// Which file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileRole {
    /// The database.
    Main,
    /// Its write-ahead log.
    Wal,
    /// Its rollback journal.
    Journal,
}

impl FileRole {
    /// All of them.
    pub const ALL: [FileRole; 3] = [FileRole::Main, FileRole::Wal, FileRole::Journal];

    /// What its name has that the database's has not.
    pub fn suffix(self) -> &'static str {
        match self {
            FileRole::Main => "",
            FileRole::Wal => "-wal",
            FileRole::Journal => "-journal",
        }
    }
}

/// What is done to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp<'a> {
    /// Bytes are written, to a file that is made if there is none.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// It gets a length.
    Resize {
        /// Bytes.
        size: u64,
    },
    /// It is removed, if it is there.
    Remove,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseChange<'a> {
    /// Which one, among those of all processes.
    pub number: u64,
    /// To which file.
    pub role: FileRole,
    /// What is done.
    pub op: FileOp<'a>,
}

/// Why a record is of no use: it is damaged, or of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseDecodeError {
    /// A kind that databases do not have.
    #[error("its kind {0} is none of a SQLite database's")]
    Kind(u8),
    /// A field is missing or makes no sense.
    #[error("its fields are not those of its kind")]
    Fields,
}

impl<'a> DatabaseChange<'a> {
    /// What kind of record it is.
    pub fn kind(&self) -> RecordKind {
        match self.op {
            FileOp::Write { .. } => KIND_WRITE,
            FileOp::Resize { .. } => KIND_RESIZE,
            FileOp::Remove => KIND_REMOVE,
        }
    }

    /// Bytes that its payload takes.
    pub fn payload_bytes(&self) -> usize {
        match self.op {
            FileOp::Write { bytes, .. } => HEADER_BYTES + bytes.len(),
            FileOp::Resize { .. } => HEADER_BYTES,
            FileOp::Remove => HEADER_BYTES - 8,
        }
    }

    /// Fills the payload.
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

    /// Reads a record. `None`: it is the journal's own.
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
    fn changes_come_back_as_they_were() {
        for change in all() {
            assert_eq!(
                DatabaseChange::decode(change.kind(), &payload(&change)),
                Ok(Some(change))
            );
        }
        assert_eq!(DatabaseChange::decode(RecordKind(3), b"the journal's"), Ok(None));
    }

    #[test]
    fn what_is_cut_or_goes_on_or_is_of_others_is_refused() {
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
