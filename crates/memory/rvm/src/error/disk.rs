//! What is on disk and cannot be used: the segment table, segments, and records of the log.

use netram_proto::id::JournalId;
use netram_proto::port::IoError;

use crate::limit::PREAMBLE_BYTES_MAX;

/// Why the segment table could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentTableError {
    /// The table's file failed.
    #[error("the segment table's file failed: {cause}")]
    Io {
        /// What the system said.
        cause: IoError,
    },
    /// The file is not a segment table, or was cut.
    #[error("the segment table is {found} bytes long, not {needed}; restore it, or name the right file")]
    Short {
        /// Bytes in the file.
        found: u64,
        /// Bytes of a table.
        needed: u64,
    },
    /// The table was made beside another journal.
    #[error(
        "the segment table belongs to journal {found}, not to {expected}; name the table of this journal"
    )]
    Foreign {
        /// The journal in the table.
        found: JournalId,
        /// The journal being opened.
        expected: JournalId,
    },
    /// Neither slot is intact.
    #[error("both slots of the segment table are damaged; restore the file from a backup")]
    Damaged,
    /// Written by a newer program.
    #[error("the segment table has version {found}, this program knows {known}; use a newer netram")]
    Version {
        /// The version in the table.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// No room for one more segment.
    #[error("a log knows at most {max} segments; forget one that is no longer used")]
    Full {
        /// The most that fit.
        max: usize,
    },
    /// The paths of all segments together do not fit.
    #[error(
        "the paths of the log's segments are {bytes} bytes too long together; move segments beneath the log's \
         directory, or forget one that is no longer used"
    )]
    PathsTooLong {
        /// The bytes that are too many.
        bytes: usize,
    },
    /// The path does not fit an entry.
    #[error("the segment's path is {bytes} bytes long, at most {max} fit; move the segment: {path}")]
    PathTooLong {
        /// The full path.
        path: String,
        /// Its length.
        bytes: usize,
        /// The most that fit.
        max: usize,
    },
}

/// Why a segment file could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// There is no file of that name.
    #[error(
        "the segment {path} does not exist; create it, or put it back where the log last saw it; if it was moved, say \
         where to with `netram rvm relocate`"
    )]
    Missing {
        /// The segment's path.
        path: String,
    },
    /// The directory of a new segment does not exist.
    #[error("there is no directory for the segment {path}; make it first, or choose another path")]
    NoDirectory {
        /// The segment's path.
        path: String,
    },
    /// A path with a zero byte, which no file can have.
    #[error("{path:?} is no name for a segment: it has a zero byte in it; choose another")]
    Name {
        /// What was given.
        path: String,
    },
    /// The file system has no files of that size.
    #[error(
        "a segment of {length} bytes at {path} is more than the file system can have in a file; choose a smaller size"
    )]
    TooLong {
        /// The segment's path.
        path: String,
        /// The bytes asked for.
        length: u64,
    },
    /// A new segment would replace a file.
    #[error("there is a file {path} already; choose another path, or map that file")]
    Exists {
        /// The segment's path.
        path: String,
    },
    /// Another process, or another open log, has it.
    #[error("the segment {path} is in use by another log or process; close that first")]
    InUse {
        /// The segment's path.
        path: String,
    },
    /// The file is shorter than the log knows it.
    #[error(
        "the segment {path} is {found} bytes long, the log knows it with {needed}; restore the whole file"
    )]
    Short {
        /// The segment's path.
        path: String,
        /// Bytes in the file.
        found: u64,
        /// Bytes it must have.
        needed: u64,
    },
    /// The file is not the one that the log's records were written for.
    #[error(
        "this log belongs to another segment at {path}: the file there was replaced or copied; put the \
         original back, or open with `adopt_segments` if the new file is a faithful copy"
    )]
    Foreign {
        /// The segment's path.
        path: String,
    },
    /// The log left a stamp on the file, and the file has one that this log has never left: another log has
    /// changed it since, or another copy of this one.
    #[error(
        "this log is not the newest of {path}: the log {log} (journal {journal}) has changed that segment since; \
         nothing was written. Use that log. Only if its changes are to be given up, open once with `adopt_segments`"
    )]
    Overtaken {
        /// The segment's path.
        path: String,
        /// The newer log.
        log: String,
        /// Its journal.
        journal: JournalId,
    },
    /// Another log has committed changes that the segment lacks.
    #[error(
        "the segment {path} belongs to the log {log} (journal {journal}), which was not closed: commits may be in that \
         log only. Close it first (`netram rvm apply` does); if it is lost, open once with `adopt_segments`"
    )]
    OwnedByOtherLog {
        /// The segment's path.
        path: String,
        /// The log that has them.
        log: String,
        /// Its journal.
        journal: JournalId,
    },
    /// The file has a stamp of this log's journal that only the damaged copy of the segment table can have
    /// known.
    #[error(
        "the newest copy of the segment table {table} is damaged, and the older copy does not know the state of {path}: \
         that may be newer than this log. If neither the log nor the segment is a copy or came from a backup, open once \
         with `adopt_segments`; if not, put the table back"
    )]
    TableOlder {
        /// The segment's path.
        path: String,
        /// The segment table.
        table: String,
    },
    /// The file is a state of the segment from before this log changed it last.
    #[error(
        "the segment {path} is older than this log: an earlier state was put back, and what the log gave to the newer \
         one is missing. Put the newer file back, or open once with `adopt_segments` to go on from the older"
    )]
    Older {
        /// The segment's path.
        path: String,
    },
    /// The log is a copy, and its original is still there.
    #[error(
        "this log is a copy: the segment {path} belongs to its original, the log {log}. Use that one, or remove it; \
         to go on with this one beside it, open once with `adopt_segments`"
    )]
    Copy {
        /// The segment's path.
        path: String,
        /// The original.
        log: String,
    },
    /// The file failed.
    #[error("the segment {path} failed: {cause}")]
    Io {
        /// The segment's path.
        path: String,
        /// What the system said.
        cause: IoError,
    },
}

/// Why a record's payload is not a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordDecodeError {
    /// It ends inside a range.
    #[error("it ends inside a range")]
    Short,
    /// It has more ranges, or fewer, than it says.
    #[error("it has not as many ranges as it says")]
    Count,
    /// A range ends beyond the largest offset.
    #[error("a range ends beyond the largest offset")]
    Overflow,
    /// Reserved or padding bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A range's header is of no known form, or longer than its range needs.
    #[error("a range's header is of no known form, or longer than needed")]
    Form,
    /// A range lies before the end of the one before.
    #[error("its ranges are not in order")]
    Order,
    /// Its preamble is longer than any.
    #[error("its preamble is longer than {PREAMBLE_BYTES_MAX} bytes")]
    Preamble,
    /// Records of this kind are not transactions.
    #[error("records of kind {kind} are not transactions")]
    Kind {
        /// The record's kind.
        kind: u8,
    },
}
