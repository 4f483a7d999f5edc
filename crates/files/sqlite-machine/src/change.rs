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

use netram_proto::port::Kind;
use netram_proto::wire::Cursor;

/// Bytes are written.
pub const KIND_WRITE: Kind = Kind(80);
/// A file gets a length.
pub const KIND_RESIZE: Kind = Kind(81);
/// A file is removed.
pub const KIND_REMOVE: Kind = Kind(82);
/// Bytes before those that are written.
pub const HEADER_BYTES: usize = 17;

/// Which file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The database.
    Main,
    /// Its write-ahead log.
    Wal,
    /// Its rollback journal.
    Journal,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Main, Role::Wal, Role::Journal];

    /// What its name has that the database's has not.
    pub fn suffix(self) -> &'static str {
        match self {
            Role::Main => "",
            Role::Wal => "-wal",
            Role::Journal => "-journal",
        }
    }
}

/// What is done to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed<'a> {
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
pub struct Change<'a> {
    /// Which one, among those of all processes.
    pub number: u64,
    /// To which file.
    pub role: Role,
    /// What is done.
    pub deed: Deed<'a>,
}

/// Why a record is of no use: it is damaged, or of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A kind that databases do not have.
    #[error("its kind {0} is none of a SQLite database's")]
    Kind(u8),
    /// A field is missing or makes no sense.
    #[error("its fields are not those of its kind")]
    Fields,
}

impl<'a> Change<'a> {
    /// What kind of record it is.
    pub fn kind(&self) -> Kind {
        match self.deed {
            Deed::Write { .. } => KIND_WRITE,
            Deed::Resize { .. } => KIND_RESIZE,
            Deed::Remove => KIND_REMOVE,
        }
    }

    /// Bytes that its payload takes.
    pub fn payload_bytes(&self) -> usize {
        match self.deed {
            Deed::Write { bytes, .. } => HEADER_BYTES + bytes.len(),
            Deed::Resize { .. } => HEADER_BYTES,
            Deed::Remove => HEADER_BYTES - 8,
        }
    }

    /// Fills the payload.
    pub fn encode(&self, into: &mut [u8]) {
        into[..8].copy_from_slice(&self.number.to_le_bytes());
        into[8] = self.role as u8;
        match self.deed {
            Deed::Write { offset, bytes } => {
                into[9..HEADER_BYTES].copy_from_slice(&offset.to_le_bytes());
                into[HEADER_BYTES..].copy_from_slice(bytes);
            }
            Deed::Resize { size } => into[9..].copy_from_slice(&size.to_le_bytes()),
            Deed::Remove => (),
        }
    }

    /// Reads a record. `None`: it is the journal's own.
    pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Option<Change<'a>>, DecodeError> {
        if kind.0 < 16 {
            return Ok(None);
        }
        if !(KIND_WRITE.0..=KIND_REMOVE.0).contains(&kind.0) {
            return Err(DecodeError::Kind(kind.0));
        }
        let mut from = Cursor::new(payload);
        let short = |_| DecodeError::Fields;
        let (number, role) = (from.u64().map_err(short)?, from.u8().map_err(short)?);
        let role = *Role::ALL.get(usize::from(role)).ok_or(DecodeError::Fields)?;
        let deed = match kind {
            KIND_WRITE => Deed::Write {
                offset: from.u64().map_err(short)?,
                bytes: from.rest(),
            },
            KIND_RESIZE => Deed::Resize {
                size: from.u64().map_err(short)?,
            },
            _ => Deed::Remove,
        };
        let change = Change { number, role, deed };
        match payload.len() == change.payload_bytes() {
            true => Ok(Some(change)),
            false => Err(DecodeError::Fields),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Change<'static>> {
        let deeds = [
            Deed::Write {
                offset: 1 << 40,
                bytes: b"a page",
            },
            Deed::Resize { size: u64::MAX },
            Deed::Remove,
        ];
        { Role::ALL.into_iter() }
            .flat_map(|role| {
                deeds.map(|deed| Change {
                    number: 77,
                    role,
                    deed,
                })
            })
            .collect()
    }

    fn payload(change: &Change<'_>) -> Vec<u8> {
        let mut payload = vec![0; change.payload_bytes()];
        change.encode(&mut payload);
        payload
    }

    #[test]
    fn changes_come_back_as_they_were() {
        for change in all() {
            assert_eq!(Change::decode(change.kind(), &payload(&change)), Ok(Some(change)));
        }
        assert_eq!(Change::decode(Kind(3), b"the journal's"), Ok(None));
    }

    #[test]
    fn what_is_cut_or_goes_on_or_is_of_others_is_refused() {
        for change in all() {
            let payload = payload(&change);
            for cut in 0..payload.len().min(HEADER_BYTES) {
                assert!(Change::decode(change.kind(), &payload[..cut]).is_err());
            }
            if change.kind() != KIND_WRITE {
                let longer = [&payload[..], &[0]].concat();
                assert_eq!(Change::decode(change.kind(), &longer), Err(DecodeError::Fields));
            }
            let mut other = payload.clone();
            other[8] = 3;
            assert_eq!(Change::decode(change.kind(), &other), Err(DecodeError::Fields));
        }
        assert_eq!(Change::decode(Kind(64), &[0; 17]), Err(DecodeError::Kind(64)));
    }
}
