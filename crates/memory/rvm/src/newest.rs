//! Whether a log may change its segments, checked before the log is opened. Opening takes the journal from
//! its present writer, and a copy that will be refused must not do that to its original.

use std::fs::File as StdFile;
use std::path::Path;

use netram_proto::id::{JournalId, Lsn};

use crate::error::SegmentError;
use crate::file::ReadOnlyFile;
use crate::real_stamp::{self, number};
use crate::real_storage::{directory_of, is_other_table};
use crate::refusal::{check, copy};
use crate::stamp::ownership;
use crate::table::{SegmentTable, TableEntry};

/// Refuses a log that was not closed and is not the newest of its segments. `table` is the path of its
/// segment table. Nothing is changed or locked. Unreadable files are ignored here; the opening reports them.
///
/// # Errors
///
/// [`SegmentError::Overtaken`], [`SegmentError::OwnedByOtherLog`], [`SegmentError::Older`] or
/// [`SegmentError::Copy`] for the first segment that is newer than the log.
pub fn refuse_older(table: &Path) -> Result<(), SegmentError> {
    let Ok(file) = ReadOnlyFile::open(table) else {
        return Ok(());
    };
    let Some((journal, read)) = SegmentTable::peek(&file, &directory_of(table)) else {
        return Ok(());
    };
    // A closed log has nothing left to apply, so it overwrites no bytes.
    for entry in read.entries.iter().filter(|entry| entry.stamps.open) {
        judge(&file.0, entry, journal)?;
    }
    Ok(())
}

fn judge(table: &StdFile, entry: &TableEntry, journal: JournalId) -> Result<(), SegmentError> {
    let path = &entry.path;
    let Ok(ReadOnlyFile(segment)) = ReadOnlyFile::open(Path::new(path)) else {
        return Ok(());
    };
    let (Ok(Some(stamp)), Ok(number)) = (real_stamp::read(&segment, path), number(&segment)) else {
        return Ok(());
    };
    // The end of the log is known only after it was opened.
    let end = Lsn(u64::MAX);
    check(
        ownership(&entry.stamps, Some(&stamp), journal, end, true),
        path,
        Some(&stamp),
    )?;
    let beside = stamp.journal == journal && stamp.file == number;
    match beside && is_other_table(table, &stamp.table, journal) {
        true => Err(copy(path, &stamp)),
        false => Ok(()),
    }
}
