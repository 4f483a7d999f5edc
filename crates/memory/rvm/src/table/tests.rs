//! Tests of the segment table: torn writes, damage, versions, moved tables.

use super::*;
use std::cell::RefCell;

struct Bytes(RefCell<Vec<u8>>);

impl StorageFile for Bytes {
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
const DIRECTORY: &str = "/segments";

fn file() -> Bytes {
    Bytes(RefCell::new(vec![0; TABLE_BYTES as usize]))
}

fn entry(index: u32) -> TableEntry {
    TableEntry {
        index,
        path: format!("/segments/{index}"),
        length: 4096,
        identity: [index as u8; 16],
        stamps: StampHistory {
            before: [1; 16],
            written: [index as u8; 16],
            generation: 9,
            open: index.is_multiple_of(2),
        },
    }
}

/// Such a path, made relative, began with a slash, and was read as another segment's full path.
#[test]
fn a_path_with_a_double_slash_reads_back() {
    let file = file();
    let mut table = SegmentTable {
        sequence: 0,
        other_damaged: false,
        entries: vec![entry(0)],
    };
    table.entries[0].path = "/segments//0".to_owned();
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    assert_eq!(SegmentTable::read(&file, JOURNAL, DIRECTORY).unwrap(), table);
}

/// A table that has not been written yet.
fn of(entries: Vec<TableEntry>) -> SegmentTable {
    SegmentTable {
        entries,
        ..SegmentTable::default()
    }
}

#[test]
fn a_blank_file_is_an_empty_table() {
    assert_eq!(
        SegmentTable::read(&file(), JOURNAL, DIRECTORY).unwrap(),
        SegmentTable::default()
    );
}

#[test]
fn a_full_table_reads_back() {
    let file = file();
    let mut table = of((0..SEGMENTS_MAX as u32).map(entry).collect());
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    assert_eq!(SegmentTable::read(&file, JOURNAL, DIRECTORY).unwrap(), table);
}

#[test]
fn a_moved_table_has_the_new_paths_of_segments_moved_with_it() {
    let file = file();
    let mut table = of(vec![entry(0), entry(1), entry(2)]);
    table.entries[1].path = "/segments-too/1".to_owned();
    table.entries[2].path = "/segments/deep/2".to_owned();
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    let moved = SegmentTable::read(&file, JOURNAL, "/new/place").unwrap();
    let paths: Vec<_> = moved.entries.iter().map(|entry| &*entry.path).collect();
    assert_eq!(paths, ["/new/place/0", "/segments-too/1", "/new/place/deep/2"]);
}

/// The bytes of version 1 for one segment.
#[test]
fn a_table_without_stamps_is_read() {
    let file = file();
    let mut slot = vec![0; TABLE_SLOT_BYTES];
    slot[0..8].copy_from_slice(&MAGIC);
    slot[8] = 1;
    slot[12] = 1;
    slot[16] = 1;
    slot[24..40].copy_from_slice(&JOURNAL.0.to_le_bytes());
    let path = b"/segments/0";
    slot[64 + 4] = path.len() as u8;
    slot[64 + 8..64 + 16].copy_from_slice(&4096u64.to_le_bytes());
    slot[64 + 32..64 + 32 + path.len()].copy_from_slice(path);
    let crc = checksum(&slot);
    slot[40..44].copy_from_slice(&crc.to_le_bytes());
    file.write_at(slot_offset(1), &slot).unwrap();
    let read = SegmentTable::read(&file, JOURNAL, "/elsewhere").unwrap();
    let known = StampHistory::default();
    let expected = TableEntry {
        stamps: known,
        ..entry(0)
    };
    assert_eq!(read.entries, [expected]);
}

#[test]
fn paths_too_long_together_are_refused_before_anything_is_written() {
    let file = file();
    let long = |index| TableEntry {
        path: format!("/{index:0>250}"),
        ..entry(index)
    };
    let mut table = of((0..SEGMENTS_MAX as u32).map(long).collect());
    let refused = table.write(&file, JOURNAL, DIRECTORY);
    assert!(
        matches!(refused, Err(SegmentTableError::PathsTooLong { .. })),
        "{refused:?}"
    );
    assert_eq!(
        SegmentTable::read(&file, JOURNAL, DIRECTORY).unwrap(),
        SegmentTable::default()
    );
}

#[test]
fn a_write_torn_anywhere_leaves_the_older_table() {
    let file = file();
    let mut table = of((0..9).map(entry).collect());
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    let old = (file.0.borrow().clone(), table.clone());
    table.entries.extend((9..18).map(entry));
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    let new = file.0.borrow().clone();
    for sectors in 0..TABLE_BYTES as usize / 512 {
        let mut torn = old.0.clone();
        torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
        let read = SegmentTable::read(&Bytes(RefCell::new(torn)), JOURNAL, DIRECTORY).unwrap();
        let same = |table: &SegmentTable| (read.sequence, &read.entries) == (table.sequence, &table.entries);
        assert!(same(&old.1) || same(&table), "torn after {sectors} sectors");
    }
}

#[test]
fn a_first_write_torn_anywhere_leaves_an_empty_or_the_whole_table() {
    let file = file();
    let mut table = of((0..9).map(entry).collect());
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    let new = file.0.borrow().clone();
    for sectors in 0..TABLE_BYTES as usize / 512 {
        let mut torn = vec![0; TABLE_BYTES as usize];
        torn[..sectors * 512].copy_from_slice(&new[..sectors * 512]);
        let read = SegmentTable::read(&Bytes(RefCell::new(torn)), JOURNAL, DIRECTORY).unwrap();
        assert!(
            read == SegmentTable::default() || read == table,
            "torn after {sectors} sectors"
        );
    }
}

#[test]
fn damaged_foreign_and_short_tables_are_refused() {
    let file = file();
    let mut table = of(vec![entry(0)]);
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    let foreign = SegmentTable::read(&file, JournalId(8), DIRECTORY);
    assert!(matches!(
        foreign,
        Err(SegmentTableError::Foreign { found: JOURNAL, .. })
    ));
    table.write(&file, JOURNAL, DIRECTORY).unwrap();
    file.0.borrow_mut()[100] ^= 1;
    file.0.borrow_mut()[TABLE_SLOT_BYTES + 100] ^= 1;
    assert!(matches!(
        SegmentTable::read(&file, JOURNAL, DIRECTORY),
        Err(SegmentTableError::Damaged)
    ));
    file.0.borrow_mut().truncate(TABLE_SLOT_BYTES);
    assert!(matches!(
        SegmentTable::read(&file, JOURNAL, DIRECTORY),
        Err(SegmentTableError::Short { .. })
    ));
}

#[test]
fn a_newer_version_is_not_reported_as_damage() {
    let file = file();
    SegmentTable::default().write(&file, JOURNAL, DIRECTORY).unwrap();
    let mut bytes = file.0.borrow().clone();
    let slot = &mut bytes[TABLE_SLOT_BYTES..];
    slot[8] = 3;
    let crc = checksum(slot);
    slot[40..44].copy_from_slice(&crc.to_le_bytes());
    let read = SegmentTable::read(&Bytes(RefCell::new(bytes)), JOURNAL, DIRECTORY);
    assert!(matches!(read, Err(SegmentTableError::Version { found: 3, .. })));
}
