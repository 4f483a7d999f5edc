//! The segment table: the segments of a log and their numbers.
//!
//! A record refers to segments by number, so the table must be durable before the first record that uses a
//! number. It is a preallocated file of two slots; each write replaces the older one, so that a torn write
//! leaves the other intact. `docs/design/rvm.md` draws the formats.

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};

use crate::error::SegmentTableError;
use crate::limit::{PATH_BYTES_MAX, SEGMENTS_MAX, TABLE_BYTES, TABLE_SLOT_BYTES};
use crate::stamp::StampHistory;
use crate::storage::SegmentIdentity;

/// Bytes before the entries of a slot.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes of an entry before its path, which is padded to a multiple of eight.
pub(crate) const ENTRY_BYTES: usize = 72;
const MAGIC: [u8; 8] = *b"NRAMSEGS";
const VERSION: u32 = 2;
/// Version with entries of one length, without stamps, and with full paths only.
const VERSION_WITHOUT_STAMPS: u32 = 1;
const OLD_ENTRY_BYTES: usize = 32 + 256;
/// Flag of an entry: the last stamp left by the log says that it may have unapplied records.
const OPEN: u16 = 1;

const _: () = assert!(
    HEADER_BYTES + SEGMENTS_MAX * (ENTRY_BYTES + 216) <= TABLE_SLOT_BYTES,
    "a full table fits its slot while paths have no more than 216 bytes on the average"
);

/// One segment in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) index: u32,
    /// Full path. In the file the path of a segment inside the table's directory is relative, so that both
    /// can be moved together.
    pub(crate) path: String,
    /// The segment's length when last mapped.
    pub(crate) length: u64,
    pub(crate) identity: SegmentIdentity,
    /// The stamps that the log has recorded for the segment.
    pub(crate) stamps: StampHistory,
}

/// The newest durable table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTable {
    pub(crate) sequence: u64,
    pub(crate) entries: Vec<TableEntry>,
    /// The other slot is damaged. It may have held a newer table, or its write was torn.
    pub(crate) other_damaged: bool,
}

/// Content of one slot.
enum Slot {
    Blank,
    Damaged,
    Version(u32),
    Good { journal: JournalId, table: SegmentTable },
}

impl SegmentTable {
    /// Reads the newest table, which must belong to `journal`. `directory` is the directory of its file.
    ///
    /// A blank slot beside a damaged one is a first write that was torn. No record can have used it; if one
    /// did, recovery finds a segment number without an entry and fails.
    pub(crate) fn read(
        file: &impl StorageFile,
        journal: JournalId,
        directory: &str,
    ) -> Result<SegmentTable, SegmentTableError> {
        let found = file.size()?;
        if found < TABLE_BYTES {
            return Err(SegmentTableError::Short {
                found,
                needed: TABLE_BYTES,
            });
        }
        let mut newest: Option<SegmentTable> = None;
        let (mut blank, mut damaged) = (false, false);
        let mut bytes = vec![0; TABLE_SLOT_BYTES];
        for slot in 0..2 {
            file.read_at(slot_offset(slot), &mut bytes)?;
            match decode(&bytes, directory) {
                Slot::Blank => blank = true,
                Slot::Damaged => damaged = true,
                Slot::Version(found) => {
                    return Err(SegmentTableError::Version {
                        found,
                        known: VERSION,
                    });
                }
                Slot::Good { journal: found, .. } if found != journal => {
                    return Err(SegmentTableError::Foreign {
                        found,
                        expected: journal,
                    });
                }
                Slot::Good { table, .. } => {
                    if newest
                        .as_ref()
                        .is_none_or(|newest| newest.sequence < table.sequence)
                    {
                        newest = Some(table);
                    }
                }
            }
        }
        match newest {
            Some(table) => Ok(SegmentTable {
                other_damaged: damaged,
                ..table
            }),
            None if blank => Ok(SegmentTable::default()),
            None => Err(SegmentTableError::Damaged),
        }
    }

    /// The newest table in `file`, of any journal; `None` if none can be read.
    pub(crate) fn peek(file: &impl StorageFile, directory: &str) -> Option<(JournalId, SegmentTable)> {
        let mut bytes = vec![0; TABLE_SLOT_BYTES];
        let mut slot = |slot| {
            file.read_at(slot_offset(slot), &mut bytes).ok()?;
            match decode(&bytes, directory) {
                Slot::Good { journal, table } => Some((journal, table)),
                _ => None,
            }
        };
        let slots = [slot(0), slot(1)];
        slots
            .into_iter()
            .flatten()
            .max_by_key(|(_, table)| table.sequence)
    }

    /// Writes the table durably over the older slot. `directory` is the directory of its file.
    pub(crate) fn write(
        &mut self,
        file: &impl StorageFile,
        journal: JournalId,
        directory: &str,
    ) -> Result<(), SegmentTableError> {
        let needed = HEADER_BYTES
            + self
                .entries
                .iter()
                .map(|entry| entry_bytes(entry, directory))
                .sum::<usize>();
        if needed > TABLE_SLOT_BYTES {
            return Err(SegmentTableError::PathsTooLong {
                bytes: needed - TABLE_SLOT_BYTES,
            });
        }
        // A failed write may have damaged its slot. The next attempt must use the same slot, so the number
        // changes only after a durable write.
        let next = SegmentTable {
            sequence: self.sequence + 1,
            entries: std::mem::take(&mut self.entries),
            other_damaged: false,
        };
        let bytes = encode(&next, journal, directory);
        self.entries = next.entries;
        file.write_at(slot_offset(next.sequence % 2), &bytes)?;
        file.sync()?;
        self.sequence = next.sequence;
        Ok(())
    }
}

fn slot_offset(slot: u64) -> u64 {
    slot * TABLE_SLOT_BYTES as u64
}

/// Path of a segment in the file: relative to the table's directory if it lies inside.
pub(crate) fn name<'p>(path: &'p str, directory: &str) -> &'p str {
    match path
        .strip_prefix(directory)
        .and_then(|rest| rest.strip_prefix('/'))
    {
        // A relative path with a leading slash would be read as a full path.
        Some(inside) if !directory.is_empty() && !inside.is_empty() && !inside.starts_with('/') => inside,
        _ => path,
    }
}

/// Full path of a segment whose path in the file is `name`.
fn full(name: &str, directory: &str) -> String {
    match name.starts_with('/') || directory.is_empty() {
        true => name.to_owned(),
        false => format!("{directory}/{name}"),
    }
}

fn entry_bytes(entry: &TableEntry, directory: &str) -> usize {
    ENTRY_BYTES + name(&entry.path, directory).len().next_multiple_of(8)
}

fn encode(table: &SegmentTable, journal: JournalId, directory: &str) -> Vec<u8> {
    assert!(table.entries.len() <= SEGMENTS_MAX);
    let mut bytes = vec![0; TABLE_SLOT_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(table.entries.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&table.sequence.to_le_bytes());
    bytes[24..40].copy_from_slice(&journal.0.to_le_bytes());
    let mut at = HEADER_BYTES;
    for entry in &table.entries {
        let name = name(&entry.path, directory);
        assert!(name.len() <= PATH_BYTES_MAX);
        let flags = if entry.stamps.open { OPEN } else { 0 };
        let into = &mut bytes[at..at + entry_bytes(entry, directory)];
        into[0..4].copy_from_slice(&entry.index.to_le_bytes());
        into[4..6].copy_from_slice(&(name.len() as u16).to_le_bytes());
        into[6..8].copy_from_slice(&flags.to_le_bytes());
        into[8..16].copy_from_slice(&entry.length.to_le_bytes());
        into[16..32].copy_from_slice(&entry.identity);
        into[32..48].copy_from_slice(&entry.stamps.before);
        into[48..64].copy_from_slice(&entry.stamps.written);
        into[64..72].copy_from_slice(&entry.stamps.generation.to_le_bytes());
        into[ENTRY_BYTES..ENTRY_BYTES + name.len()].copy_from_slice(name.as_bytes());
        at += into.len();
    }
    let crc = checksum(&bytes);
    bytes[40..44].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// CRC32C of the whole slot, with zeros in the checksum's own field.
fn checksum(slot: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&slot[..40]);
    digest.update(&[0; 4]);
    digest.update(&slot[44..]);
    // The crate returns the 32-bit checksum in 64 bits.
    digest.finalize() as u32
}

fn decode(bytes: &[u8], directory: &str) -> Slot {
    assert_eq!(bytes.len(), TABLE_SLOT_BYTES);
    if bytes.iter().all(|byte| *byte == 0) {
        return Slot::Blank;
    }
    if bytes[0..8] != MAGIC || u32_at(bytes, 40) != checksum(bytes) {
        return Slot::Damaged;
    }
    let decode_next = match u32_at(bytes, 8) {
        VERSION => decode_entry,
        VERSION_WITHOUT_STAMPS => decode_old_entry,
        version => return Slot::Version(version),
    };
    let count = u32_at(bytes, 12) as usize;
    if count > SEGMENTS_MAX {
        return Slot::Damaged;
    }
    let mut entries: Vec<TableEntry> = Vec::with_capacity(count);
    let mut rest = &bytes[HEADER_BYTES..];
    for _ in 0..count {
        match decode_next(&mut rest, directory) {
            Some(entry) if entries.iter().all(|other| other.index != entry.index) => entries.push(entry),
            _ => return Slot::Damaged,
        }
    }
    let journal: [u8; 16] = bytes[24..40].try_into().expect("16 bytes");
    Slot::Good {
        journal: JournalId(u128::from_le_bytes(journal)),
        table: SegmentTable {
            sequence: u64_at(bytes, 16),
            entries,
            other_damaged: false,
        },
    }
}

/// Decodes the next entry and removes it from `rest`.
fn decode_entry(rest: &mut &[u8], directory: &str) -> Option<TableEntry> {
    let from = rest.split_off(..ENTRY_BYTES)?;
    let (length, flags) = (u16_at(from, 4) as usize, u16_at(from, 6));
    let index = u32_at(from, 0);
    if index as usize >= SEGMENTS_MAX || length == 0 || length > PATH_BYTES_MAX {
        return None;
    }
    let name = rest.split_off(..length.next_multiple_of(8))?;
    let name = std::str::from_utf8(&name[..length]).ok()?;
    Some(TableEntry {
        index,
        path: full(name, directory),
        length: u64_at(from, 8),
        identity: sixteen(from, 16),
        stamps: StampHistory {
            before: sixteen(from, 32),
            written: sixteen(from, 48),
            generation: u64_at(from, 64),
            open: flags & OPEN != 0,
        },
    })
}

/// Decodes an entry of the version without stamps.
fn decode_old_entry(rest: &mut &[u8], _: &str) -> Option<TableEntry> {
    let from = rest.split_off(..OLD_ENTRY_BYTES)?;
    let index = u32_at(from, 0);
    let path = from[32..].get(..u32_at(from, 4) as usize)?;
    if index as usize >= SEGMENTS_MAX || path.len() > PATH_BYTES_MAX {
        return None;
    }
    Some(TableEntry {
        index,
        path: std::str::from_utf8(path).ok()?.to_owned(),
        length: u64_at(from, 8),
        identity: sixteen(from, 16),
        stamps: StampHistory::default(),
    })
}

fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    bytes[at..at + 16].try_into().expect("16 bytes")
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl From<IoError> for SegmentTableError {
    fn from(cause: IoError) -> SegmentTableError {
        SegmentTableError::Io { cause }
    }
}

/// Fuzz target of [`crate::fuzzed::table`]. A table that was read can be written and read again, in its own
/// directory and in another.
pub(crate) fn fuzz(bytes: &[u8]) {
    let Some((mend, bytes)) = bytes.split_first() else {
        return;
    };
    let mut slot = vec![0; TABLE_SLOT_BYTES];
    slot[..bytes.len()].copy_from_slice(bytes);
    if mend & 1 != 0 {
        let crc = checksum(&slot);
        slot[40..44].copy_from_slice(&crc.to_le_bytes());
    }
    let directory = if mend & 2 != 0 { "/segments" } else { "" };
    let Slot::Good { journal, table } = decode(&slot, directory) else {
        return;
    };
    assert!(table.entries.len() <= SEGMENTS_MAX);
    // Older tables may have paths that no newer one gets: empty ones, or ones that are not full.
    let written = |entry: &TableEntry| {
        entry.path.starts_with('/') && name(&entry.path, directory).len() <= PATH_BYTES_MAX
    };
    if !directory.is_empty() && !table.entries.iter().all(written) {
        return;
    }
    if table
        .entries
        .iter()
        .any(|entry| entry.path.is_empty() || entry.path.len() > PATH_BYTES_MAX)
    {
        return;
    }
    match decode(&encode(&table, journal, directory), directory) {
        Slot::Good {
            journal: again,
            table: read,
        } => assert_eq!((again, read), (journal, table)),
        _ => panic!("a table that was read can be read again"),
    }
}

/// Seeds of [`crate::fuzzed::table_seeds`].
pub(crate) fn fuzz_seeds() -> Vec<Vec<u8>> {
    let entry = |index: u32| TableEntry {
        index,
        path: format!("/segments/{index}"),
        length: 4096,
        identity: [index as u8; 16],
        stamps: StampHistory::default(),
    };
    let table = SegmentTable {
        sequence: 9,
        other_damaged: false,
        entries: vec![entry(0), entry(7)],
    };
    let slot = encode(&table, JournalId(5), "/segments");
    let mut old = slot[..HEADER_BYTES + 2 * OLD_ENTRY_BYTES].to_vec();
    old[8..12].copy_from_slice(&VERSION_WITHOUT_STAMPS.to_le_bytes());
    vec![
        [&[3], &slot[..256]].concat(),
        [&[1], &slot[..256]].concat(),
        [&[1], &old[..]].concat(),
    ]
}

#[cfg(test)]
mod tests;
