//! Errors of files: the segment table, segments, and records of the log.

use netram_proto::id::JournalId;
use netram_proto::port::IoError;

use crate::limit::PREAMBLE_BYTES_MAX;

/// Why the segment table could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentTableError {
    /// An operation on the table's file failed.
    #[error("the segment table's file failed: {cause}")]
    Io {
        /// The system's error.
        cause: IoError,
    },
    /// The file is not a segment table, or was truncated.
    #[error("the segment table is {found} bytes long, not {needed}; restore it, or name the right file")]
    Short {
        /// Length of the file, in bytes.
        found: u64,
        /// Length of a segment table, in bytes.
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
    /// Neither slot of the table is intact.
    #[error("both slots of the segment table are damaged; restore the file from a backup")]
    Damaged,
    /// The table was written by a newer program.
    #[error("the segment table has version {found}, but this program knows only {known}; use a newer netram")]
    Version {
        /// The version in the table.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// The table has no room for another segment.
    #[error("a log knows at most {max} segments; forget one that is no longer used")]
    Full {
        /// Most segments that one table holds.
        max: usize,
    },
    /// The paths of all segments together do not fit into the table.
    #[error(
        "the paths of the log's segments are together {bytes} bytes too long; move segments into the log's \
         directory, or forget one that is no longer used"
    )]
    PathsTooLong {
        /// Excess bytes.
        bytes: usize,
    },
    /// The segment's path is longer than an entry holds.
    #[error("the segment's path is {bytes} bytes long, but at most {max} fit; move the segment: {path}")]
    PathTooLong {
        /// The full path.
        path: String,
        /// Length of the path, in bytes.
        bytes: usize,
        /// Longest path, in bytes.
        max: usize,
    },
}

/// Why a segment file could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The segment's file does not exist.
    #[error(
        "the segment {path} does not exist; create it, or put it back where the log last saw it; if it was \
         moved, give its new path to `netram rvm relocate`"
    )]
    Missing {
        /// The segment's path.
        path: String,
    },
    /// The directory for a new segment does not exist.
    #[error("the directory for the segment {path} does not exist; create it first, or choose another path")]
    NoDirectory {
        /// The segment's path.
        path: String,
    },
    /// The path contains a zero byte, which no file's name can have.
    #[error("a segment cannot be named {path:?}: the path contains a zero byte; choose another")]
    Name {
        /// The path given.
        path: String,
    },
    /// The segment is larger than the file system's largest file.
    #[error(
        "a segment of {length} bytes at {path} exceeds the file system's largest file; choose a smaller size"
    )]
    TooLong {
        /// The segment's path.
        path: String,
        /// Requested length, in bytes.
        length: u64,
    },
    /// A file already exists at the path of a new segment.
    #[error("the file {path} already exists; choose another path, or map that file")]
    Exists {
        /// The segment's path.
        path: String,
    },
    /// Another process, or another open log, has the segment locked.
    #[error("the segment {path} is in use by another log or process; close that first")]
    InUse {
        /// The segment's path.
        path: String,
    },
    /// The file is shorter than the segment that the log knows.
    #[error("the segment {path} is {found} bytes long, but the log needs {needed}; restore the whole file")]
    Short {
        /// The segment's path.
        path: String,
        /// Length of the file, in bytes.
        found: u64,
        /// Length that the log needs, in bytes.
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
    /// Another log, or another copy of this one, has changed the segment since this log did. The file's stamp
    /// is one that this log has never left.
    #[error(
        "this log is not the newest of {path}: the log {log} (journal {journal}) has changed that segment \
         since; nothing was written. Use that log. Only if its changes are to be given up, open once with \
         `adopt_segments`"
    )]
    Overtaken {
        /// The segment's path.
        path: String,
        /// The newer log.
        log: String,
        /// Its journal.
        journal: JournalId,
    },
    /// Another log has committed changes that are not applied to the segment yet.
    #[error(
        "the segment {path} belongs to the log {log} (journal {journal}), which was not closed: commits may \
         be in that log only. Close it first (`netram rvm apply` does); if it is lost, open once with \
         `adopt_segments`"
    )]
    OwnedByOtherLog {
        /// The segment's path.
        path: String,
        /// The log that holds them.
        log: String,
        /// Its journal.
        journal: JournalId,
    },
    /// The newest copy of the segment table is damaged, and the older copy does not know the stamp on the
    /// segment.
    #[error(
        "the newest copy of the segment table {table} is damaged, and the older copy does not know the state \
         of {path}: that may be newer than this log. If neither the log nor the segment is a copy or came \
         from a backup, open once with `adopt_segments`; if not, put the table back"
    )]
    TableOlder {
        /// The segment's path.
        path: String,
        /// The segment table.
        table: String,
    },
    /// The file is an earlier state of the segment than this log left.
    #[error(
        "the segment {path} is older than this log: an earlier state was put back, and changes that the log \
         applied to the newer one are missing. Put the newer file back, or open once with `adopt_segments` \
         to continue from the older"
    )]
    Older {
        /// The segment's path.
        path: String,
    },
    /// The log is a copy, and its original still exists.
    #[error(
        "this log is a copy: the segment {path} belongs to its original, the log {log}. Use that one, or \
         remove it; to continue with this copy beside it, open once with `adopt_segments`"
    )]
    Copy {
        /// The segment's path.
        path: String,
        /// The original.
        log: String,
    },
    /// An operation on the segment's file failed.
    #[error("the segment {path} failed: {cause}")]
    Io {
        /// The segment's path.
        path: String,
        /// The system's error.
        cause: IoError,
    },
}

/// Why a record's payload is not a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordDecodeError {
    /// The payload ends inside a range.
    #[error("the payload ends inside a range")]
    Short,
    /// The number of ranges differs from the number in the header.
    #[error("the number of ranges differs from the one in the header")]
    Count,
    /// A range ends beyond the largest offset.
    #[error("a range ends beyond the largest offset")]
    Overflow,
    /// Reserved or padding bytes are not zero.
    #[error("reserved bytes are not zero")]
    Reserved,
    /// A range's header has an unknown form or is longer than its range needs.
    #[error("a range's header has an unknown form or is longer than needed")]
    Form,
    /// A range begins before the end of the previous one.
    #[error("the ranges are not in order")]
    Order,
    /// The preamble is longer than the limit.
    #[error("the preamble is longer than {PREAMBLE_BYTES_MAX} bytes")]
    Preamble,
    /// A record of this kind is not a transaction.
    #[error("records of kind {kind} are not transactions")]
    Kind {
        /// The record's kind.
        kind: u8,
    },
}
