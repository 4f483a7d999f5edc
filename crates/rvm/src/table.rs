//! The segment table: which segments a log knows, by which number.
//!
//! A record names its segments by number, so the table must be durable before the first record that uses a
//! number. It is a preallocated file of two slots; the older one is overwritten, so that a torn write leaves
//! the other. Formats are drawn in `docs/rvm.md`.

use netram_proto::id::JournalId;
use netram_proto::port::{File, IoError};

use crate::error::TableError;
use crate::limit::{PATH_BYTES_MAX, SEGMENTS_MAX, TABLE_BYTES, TABLE_SLOT_BYTES};
use crate::storage::Identity;

/// Bytes before the entries of a slot.
pub(crate) const HEADER_BYTES: usize = 64;
/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 32 + 256;
const MAGIC: [u8; 8] = *b"NRAMSEGS";
const VERSION: u32 = 1;

/// What the table says of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    pub(crate) path: String,
    /// The segment's length when last mapped.
    pub(crate) length: u64,
    pub(crate) identity: Identity,
}

/// The newest durable table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) sequence: u64,
    pub(crate) entries: Vec<Entry>,
}

/// What one slot holds.
enum Slot {
    Blank,
    Damaged,
    Version(u32),
    Good { journal: JournalId, table: Table },
}

impl Table {
    /// Reads the newest table that belongs to `journal`.
    ///
    /// A blank slot beside a damaged one is a first write that was torn: nothing can have referred to it,
    /// and if something did, recovery finds a segment number without an entry and refuses.
    pub(crate) fn read(file: &impl File, journal: JournalId) -> Result<Table, TableError> {
        let found = file.size()?;
        if found < TABLE_BYTES {
            return Err(TableError::Short {
                found,
                needed: TABLE_BYTES,
            });
        }
        let mut newest: Option<Table> = None;
        let mut blank = false;
        let mut bytes = vec![0; TABLE_SLOT_BYTES];
        for slot in 0..2 {
            file.read_at(slot_offset(slot), &mut bytes)?;
            match decode(&bytes) {
                Slot::Blank => blank = true,
                Slot::Damaged => {}
                Slot::Version(found) => {
                    return Err(TableError::Version {
                        found,
                        known: VERSION,
                    });
                }
                Slot::Good { journal: found, .. } if found != journal => {
                    return Err(TableError::Foreign {
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
            Some(table) => Ok(table),
            None if blank => Ok(Table::default()),
            None => Err(TableError::Damaged),
        }
    }

    /// Writes the table over the older slot, durably.
    pub(crate) fn write(&mut self, file: &impl File, journal: JournalId) -> Result<(), TableError> {
        // A failed write may have left either slot; the next attempt must go to the same one, so the number
        // only moves when the write is durable.
        let next = Table {
            sequence: self.sequence + 1,
            entries: std::mem::take(&mut self.entries),
        };
        let bytes = encode(&next, journal);
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

fn encode(table: &Table, journal: JournalId) -> Vec<u8> {
    assert!(table.entries.len() <= SEGMENTS_MAX);
    let mut bytes = vec![0; TABLE_SLOT_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&(table.entries.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&table.sequence.to_le_bytes());
    bytes[24..40].copy_from_slice(&journal.0.to_le_bytes());
    for (entry, into) in table
        .entries
        .iter()
        .zip(bytes[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES))
    {
        assert!(entry.path.len() <= PATH_BYTES_MAX);
        into[0..4].copy_from_slice(&entry.index.to_le_bytes());
        into[4..8].copy_from_slice(&(entry.path.len() as u32).to_le_bytes());
        into[8..16].copy_from_slice(&entry.length.to_le_bytes());
        into[16..32].copy_from_slice(&entry.identity);
        into[32..32 + entry.path.len()].copy_from_slice(entry.path.as_bytes());
    }
    let crc = checksum(&bytes);
    bytes[40..44].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// CRC32C of the whole slot with the checksum's own field as zeros.
fn checksum(slot: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&slot[..40]);
    digest.update(&[0; 4]);
    digest.update(&slot[44..]);
    // A 32-bit checksum in a 64-bit answer.
    digest.finalize() as u32
}

fn decode(bytes: &[u8]) -> Slot {
    assert_eq!(bytes.len(), TABLE_SLOT_BYTES);
    if bytes.iter().all(|byte| *byte == 0) {
        return Slot::Blank;
    }
    if bytes[0..8] != MAGIC || u32_at(bytes, 40) != checksum(bytes) {
        return Slot::Damaged;
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Slot::Version(version);
    }
    let count = u32_at(bytes, 12) as usize;
    if count > SEGMENTS_MAX {
        return Slot::Damaged;
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(count);
    for from in bytes[HEADER_BYTES..].chunks_exact(ENTRY_BYTES).take(count) {
        match decode_entry(from) {
            Some(entry) if entries.iter().all(|other| other.index != entry.index) => entries.push(entry),
            _ => return Slot::Damaged,
        }
    }
    let journal: [u8; 16] = bytes[24..40].try_into().expect("16 bytes");
    Slot::Good {
        journal: JournalId(u128::from_le_bytes(journal)),
        table: Table {
            sequence: u64_at(bytes, 16),
            entries,
        },
    }
}

fn decode_entry(from: &[u8]) -> Option<Entry> {
    let index = u32_at(from, 0);
    let path = from[32..].get(..u32_at(from, 4) as usize)?;
    if index as usize >= SEGMENTS_MAX || path.len() > PATH_BYTES_MAX {
        return None;
    }
    Some(Entry {
        index,
        path: std::str::from_utf8(path).ok()?.to_owned(),
        length: u64_at(from, 8),
        identity: from[16..32].try_into().expect("16 bytes"),
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl From<IoError> for TableError {
    fn from(cause: IoError) -> TableError {
        TableError::Io { cause }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Bytes(RefCell<Vec<u8>>);

    impl File for Bytes {
        fn size(&self) -> Result<u64, IoError> {
            Ok(self.0.borrow().len() as u64)
        }
        fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
            let offset = offset as usize;
            into.copy_from_slice(&self.0.borrow()[offset..offset + into.len()]);
            Ok(())
        }
        fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
            let offset = offset as usize;
            self.0.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
        fn sync(&self) -> Result<(), IoError> {
            Ok(())
        }
    }

    const JOURNAL: JournalId = JournalId(7);

    fn file() -> Bytes {
        Bytes(RefCell::new(vec![0; TABLE_BYTES as usize]))
    }

    fn entry(index: u32) -> Entry {
        Entry {
            index,
            path: format!("/segments/{index}"),
            length: 4096,
            identity: [index as u8; 16],
        }
    }

    #[test]
    fn a_blank_table_is_an_empty_one() {
        assert_eq!(Table::read(&file(), JOURNAL).unwrap(), Table::default());
    }

    #[test]
    fn a_full_table_reads_back() {
        let file = file();
        let mut table = Table {
            sequence: 0,
            entries: (0..SEGMENTS_MAX as u32).map(entry).collect(),
        };
        table.write(&file, JOURNAL).unwrap();
        assert_eq!(Table::read(&file, JOURNAL).unwrap(), table);
    }

    #[test]
    fn a_write_torn_anywhere_leaves_the_older_table() {
        let file = file();
        let mut table = Table {
            sequence: 0,
            entries: (0..9).map(entry).collect(),
        };
        table.write(&file, JOURNAL).unwrap();
        let old = (file.0.borrow().clone(), table.clone());
        table.entries.extend((9..18).map(entry));
        table.write(&file, JOURNAL).unwrap();
        let new = file.0.borrow().clone();
        for sectors in 0..TABLE_BYTES as usize / 512 {
            let mut torn = old.0.clone();
            torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
            let read = Table::read(&Bytes(RefCell::new(torn)), JOURNAL).unwrap();
            assert!(read == old.1 || read == table, "torn after {sectors} sectors");
        }
    }

    #[test]
    fn a_first_write_torn_anywhere_leaves_an_empty_or_the_whole_table() {
        let file = file();
        let mut table = Table {
            sequence: 0,
            entries: (0..9).map(entry).collect(),
        };
        table.write(&file, JOURNAL).unwrap();
        let new = file.0.borrow().clone();
        for sectors in 0..TABLE_BYTES as usize / 512 {
            let mut torn = vec![0; TABLE_BYTES as usize];
            torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
            let read = Table::read(&Bytes(RefCell::new(torn)), JOURNAL).unwrap();
            assert!(
                read == Table::default() || read == table,
                "torn after {sectors} sectors"
            );
        }
    }

    #[test]
    fn damaged_foreign_and_short_tables_are_refused() {
        let file = file();
        let mut table = Table {
            sequence: 0,
            entries: vec![entry(0)],
        };
        table.write(&file, JOURNAL).unwrap();
        let foreign = Table::read(&file, JournalId(8));
        assert!(matches!(foreign, Err(TableError::Foreign { found: JOURNAL, .. })));
        table.write(&file, JOURNAL).unwrap();
        file.0.borrow_mut()[100] ^= 1;
        file.0.borrow_mut()[TABLE_SLOT_BYTES + 100] ^= 1;
        assert!(matches!(Table::read(&file, JOURNAL), Err(TableError::Damaged)));
        file.0.borrow_mut().truncate(TABLE_SLOT_BYTES);
        assert!(matches!(
            Table::read(&file, JOURNAL),
            Err(TableError::Short { .. })
        ));
    }

    #[test]
    fn a_newer_version_is_named_not_called_damage() {
        let file = file();
        Table::default().write(&file, JOURNAL).unwrap();
        let mut bytes = file.0.borrow().clone();
        let slot = &mut bytes[TABLE_SLOT_BYTES..];
        slot[8] = 2;
        let crc = checksum(slot);
        slot[40..44].copy_from_slice(&crc.to_le_bytes());
        let read = Table::read(&Bytes(RefCell::new(bytes)), JOURNAL);
        assert!(matches!(read, Err(TableError::Version { found: 2, .. })));
    }
}
