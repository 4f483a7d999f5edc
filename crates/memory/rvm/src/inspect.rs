//! Read-only views of a log's segments for tools: nothing is locked or changed.
//!
//! Beside a running program the view is a snapshot that may already be out of date.

use std::path::Path;

use netram_proto::id::JournalId;
use netram_proto::port::{IoError, StorageFile};

use crate::error::SegmentTableError;
use crate::file::ReadOnlyFile;
use crate::real_storage::{directory_of, identity_of};
use crate::segments::segment_io;
use crate::storage::SegmentIdentity;
use crate::table::SegmentTable;
use crate::{RangeView, SegmentError};

/// The segments in a log's segment table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableView {
    /// The segments, by number.
    pub segments: Vec<SegmentView>,
}

/// One segment in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// Number of the segment in records.
    pub number: u32,
    /// Its file.
    pub path: String,
    /// Length when last mapped, in bytes; the file may be longer, never shorter.
    pub length: u64,
    /// Distinguishes the file from another of the same name; zeros if the file system cannot keep an
    /// identity.
    pub identity: SegmentIdentity,
}

impl TableView {
    /// Reads the table at `path`, which must belong to `journal`.
    ///
    /// # Errors
    ///
    /// [`SegmentTableError`] if the file cannot be read, is damaged, or belongs to another journal.
    pub fn read(path: &Path, journal: JournalId) -> Result<TableView, SegmentTableError> {
        let file = ReadOnlyFile::open(path)?;
        let mut segments: Vec<SegmentView> = SegmentTable::read(&file, journal, &directory_of(path))?
            .entries
            .into_iter()
            .map(|entry| SegmentView {
                number: entry.index,
                path: entry.path,
                length: entry.length,
                identity: entry.identity,
            })
            .collect();
        segments.sort_by_key(|segment| segment.number);
        Ok(TableView { segments })
    }

    /// The segment that records name `number`.
    pub fn numbered(&self, number: u32) -> Option<&SegmentView> {
        self.segments.iter().find(|segment| segment.number == number)
    }
}

impl SegmentView {
    /// Opens the segment's file for reading, after checking that the log's records were written for that
    /// file.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] if the file is missing, too short, or not the recorded one.
    pub fn open(&self) -> Result<SegmentFile, SegmentError> {
        let io = |cause| segment_io(&self.path, cause);
        let file = ReadOnlyFile::open(Path::new(&self.path)).map_err(io)?;
        let identity = identity_of(&file.0).map_err(io)?;
        if self.identity != SegmentIdentity::default() && self.identity != identity {
            return Err(SegmentError::Foreign {
                path: self.path.clone(),
            });
        }
        let length = file.size().map_err(io)?;
        if length < self.length {
            return Err(SegmentError::Short {
                path: self.path.clone(),
                found: length,
                needed: self.length,
            });
        }
        Ok(SegmentFile { file, length })
    }

    /// Whether `range` names this segment and lies within its known length.
    pub fn holds(&self, range: &RangeView<'_>) -> bool {
        let end = range.offset.checked_add(range.bytes.len() as u64);
        range.segment == self.number && end.is_some_and(|end| end <= self.length)
    }
}

/// A segment's file, open for reading.
#[derive(Debug)]
pub struct SegmentFile {
    file: ReadOnlyFile,
    length: u64,
}

impl SegmentFile {
    /// Bytes in the file.
    #[allow(clippy::len_without_is_empty, reason = "no caller asks whether it is empty")]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Fills `into` from `offset`: bytes that truncation has written so far, without those that are only in
    /// the log.
    ///
    /// # Errors
    ///
    /// The system's error.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.file.read_at(offset, into)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File as StdFile;

    use netram_proto::id::Lsn;

    use super::*;
    use crate::limit::{TABLE_BYTES, TABLE_SLOT_BYTES};
    use crate::{RealStorage, SegmentAllocation, SegmentStorage};

    const JOURNAL: JournalId = JournalId(7);

    /// A segment table in `directory` with two segments of 8192 bytes.
    fn table(directory: &Path) -> std::path::PathBuf {
        let path = directory.join("segments");
        let storage = RealStorage::create(path.to_str().unwrap()).unwrap();
        let mut segments =
            crate::segments::Segments::new(SegmentTable::default(), &crate::RvmOptions::new(JOURNAL));
        for name in ["a", "b"] {
            let name = directory.join(name).display().to_string();
            storage
                .create_segment(&name, 8192, SegmentAllocation::Sparse)
                .unwrap();
            segments.enter(&storage, &name, Lsn(0), Lsn(0)).unwrap();
        }
        path
    }

    #[test]
    fn the_segments_are_seen_while_another_has_them_locked() {
        let directory = tempfile::tempdir().unwrap();
        let path = table(directory.path());
        let _held = RealStorage::open(path.to_str().unwrap()).unwrap();
        let view = TableView::read(&path, JOURNAL).unwrap();
        let numbers: Vec<u32> = view.segments.iter().map(|segment| segment.number).collect();
        assert_eq!(numbers, [0, 1]);
        let a = view.numbered(0).unwrap();
        assert_eq!((a.length, a.open().unwrap().len()), (8192, 8192));
        assert!(view.numbered(2).is_none());
    }

    #[test]
    fn a_range_that_leaves_its_segment_is_not_held() {
        let segment = SegmentView {
            number: 3,
            path: "a".to_owned(),
            length: 100,
            identity: SegmentIdentity::default(),
        };
        for (number, offset, length, held) in [
            (3, 0, 100, true),
            (3, 99, 1, true),
            (3, 99, 2, false),
            (3, u64::MAX, 1, false),
            (2, 0, 1, false),
        ] {
            let bytes = vec![0; length];
            let range = RangeView {
                segment: number,
                offset,
                bytes: &bytes,
            };
            assert_eq!(segment.holds(&range), held, "{offset}+{length}");
        }
    }

    #[test]
    fn a_missing_short_or_replaced_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let view = TableView::read(&table(directory.path()), JOURNAL).unwrap();
        let (a, b) = (view.numbered(0).unwrap(), view.numbered(1).unwrap());
        std::fs::remove_file(&a.path).unwrap();
        assert!(matches!(a.open(), Err(SegmentError::Missing { .. })));
        let shorter = StdFile::options().write(true).open(&b.path).unwrap();
        shorter.set_len(4096).unwrap();
        assert!(matches!(
            b.open(),
            Err(SegmentError::Short {
                found: 4096,
                needed: 8192,
                ..
            })
        ));
        std::fs::write(&a.path, [0; 8192]).unwrap();
        match a.identity == SegmentIdentity::default() {
            // Output of a passing test is captured, so this is written to standard error directly.
            true => drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                b"\nSKIPPED a part of this test: this file system keeps no extended attributes\n",
            )),
            false => assert!(matches!(a.open(), Err(SegmentError::Foreign { .. }))),
        }
    }

    #[test]
    fn a_table_of_another_journal_or_cut_off_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = table(directory.path());
        let foreign = TableView::read(&path, JournalId(8));
        assert!(
            matches!(foreign, Err(SegmentTableError::Foreign { .. })),
            "{foreign:?}"
        );
        let file = StdFile::options().write(true).open(&path).unwrap();
        file.set_len(TABLE_SLOT_BYTES as u64).unwrap();
        let short = TableView::read(&path, JOURNAL);
        let needed = TABLE_BYTES;
        assert!(matches!(short, Err(SegmentTableError::Short { needed: n, .. }) if n == needed));
        let gone = TableView::read(&directory.path().join("none"), JOURNAL);
        assert!(
            matches!(
                gone,
                Err(SegmentTableError::Io {
                    cause: IoError::ENOENT
                })
            ),
            "{gone:?}"
        );
    }
}
