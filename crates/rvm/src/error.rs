//! One error an operation, one variant a reaction.

mod range;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{AppendError, IoError, Kind, LogError, WaitError};

use crate::limit::PREAMBLE_BYTES_MAX;
pub use range::RangeError;

/// Why the segment table could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
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
    #[error("the segment {path} does not exist; create it, or put it back where the log last saw it")]
    Missing {
        /// The segment's path.
        path: String,
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
pub enum DecodeError {
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

/// Why truncation or recovery stopped. Nothing is lost: the log keeps every record, and the next attempt
/// starts again from its head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TruncateError {
    /// A segment file cannot take its bytes.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// The log could not be read or trimmed.
    #[error("{0}")]
    Log(LogError),
    /// The log's newest records did not reach the disk.
    #[error("{0}")]
    Wait(WaitError),
    /// Lazy commits that are still in memory could not be logged, so not be applied.
    #[error("lazy commits could not be logged before truncation: {0}")]
    Append(AppendError),
    /// A record passed the log's checksum and is yet no transaction.
    #[error("the record at LSN {lsn} is damaged: {cause}; run `netram journal verify`")]
    Damaged {
        /// Where the record begins.
        lsn: Lsn,
        /// What is wrong with it.
        cause: DecodeError,
    },
    /// The log holds records of another user (a disk volume, say), which truncation would destroy.
    #[error("the record at LSN {lsn} has kind {}: this log is not used for recoverable memory", kind.0)]
    ForeignKind {
        /// Where the record begins.
        lsn: Lsn,
        /// Its kind.
        kind: Kind,
    },
    /// The records are another's to apply ([`crate::Truncation::Elsewhere`]).
    #[error("this log's records are applied elsewhere, and trimmed when that is done")]
    Elsewhere,
    /// The records are applied here; nobody else can say that they are no longer needed.
    #[error("this log is trimmed when its records have been applied here; truncate it")]
    Here,
    /// Whoever applies the records did not say for how many that is done.
    #[error("whoever applies its records has let none go within {patience_ms} ms; look after the other side")]
    NotTrimmed {
        /// How long it was waited for.
        patience_ms: u128,
    },
    /// A record names a segment that the table does not know.
    #[error(
        "the record at LSN {lsn} names segment {segment}, unknown to the segment table; restore the table"
    )]
    UnknownSegment {
        /// Where the record begins.
        lsn: Lsn,
        /// The segment's number.
        segment: u32,
    },
}

/// Why recoverable memory could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The truncation threshold is no percentage from 1 to 95.
    #[error("the truncation threshold is {percent} %; choose 1 to 95")]
    Threshold {
        /// What the options said.
        percent: u8,
    },
    /// The segment table is unusable.
    #[error("{0}")]
    Table(#[from] TableError),
    /// Recovery stopped. The log keeps every record; mend the cause and open again.
    #[error("recovery stopped: {0}")]
    Recovery(#[from] TruncateError),
}

/// Why a region was not mapped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Some of the bytes are mapped already (the original's `RVM_EOVERLAP`).
    #[error(
        "bytes {offset}..{end} of {path} overlap a mapped region, or share a page with it; unmap that first"
    )]
    Overlap {
        /// The segment's path.
        path: String,
        /// First byte asked for.
        offset: u64,
        /// Byte behind the last asked for.
        end: u64,
    },
    /// The offset is not a multiple of the page size.
    #[error("the offset {offset} is not a multiple of {page}")]
    Unaligned {
        /// The offset asked for.
        offset: u64,
        /// The page size.
        page: u64,
    },
    /// The bytes asked for are not in the segment, or there are none.
    #[error("bytes {offset}.. (length {length}) are not inside {path}, which has {size}")]
    OutOfSegment {
        /// The segment's path.
        path: String,
        /// The offset asked for.
        offset: u64,
        /// The length asked for; 0 is "to the end".
        length: u64,
        /// The segment's size.
        size: u64,
    },
    /// Something is mapped at the address asked for (the original's `RVM_EVM_OVERLAP`).
    #[error("something is mapped between {address:#x} and {length} bytes on; choose another address")]
    AddressTaken {
        /// The address asked for.
        address: usize,
        /// Bytes to map there.
        length: usize,
    },
    /// The address asked for is zero, or not a multiple of the page size.
    #[error("{address:#x} is no address for a region; choose a multiple of {page}, not zero")]
    AddressUnaligned {
        /// The address asked for.
        address: usize,
        /// The page size.
        page: u64,
    },
    /// Nothing can be mapped at the address asked for: it lies beyond the address space, say.
    #[error("{length} bytes cannot be mapped at {address:#x} ({cause}); choose another address")]
    AddressUnusable {
        /// The address asked for.
        address: usize,
        /// Bytes to map there.
        length: usize,
        /// What the system said.
        cause: IoError,
    },
    /// The segment file is unusable.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// The segment could not be entered in the table.
    #[error("{0}")]
    Table(#[from] TableError),
    /// Committed bytes of this segment could not be applied before mapping it again.
    #[error("committed bytes could not be applied before mapping: {0}")]
    Truncate(#[from] TruncateError),
}

/// Why a region's stores cannot be found as asked. The region is at [`crate::Capture::Declared`], unless
/// transactions were open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Open transactions have ranges in the region.
    #[error("{transactions} open transactions have ranges in the region; end them first")]
    Uncommitted {
        /// How many.
        transactions: usize,
    },
    /// The region is not made of pages of 4096 bytes: its storage keeps it on the heap, or the system's are
    /// larger.
    #[error("the region's memory is not made of pages of 4096 bytes; declare ranges")]
    NotPages,
    /// More memory than is kept account of.
    #[error("a region of {length} bytes is too large to be captured by page: {max} at most; map it in parts")]
    TooLarge {
        /// Bytes of the region.
        length: usize,
        /// The most.
        max: usize,
    },
    /// Too many regions of the process are protected.
    #[error("{max} regions of this process are protected already; use `Find::Watch`, or declare ranges")]
    TooManyTraps {
        /// The most.
        max: usize,
    },
    /// The kernel does not note stores, or may not for this process.
    #[error(
        "this system does not note stores (it needs Linux 6.7 and userfaultfd): {cause}; use `Find::Trap`"
    )]
    NoWatch {
        /// What the system said.
        cause: IoError,
    },
    /// The system refused.
    #[error("the region's pages cannot be protected: {cause}")]
    System {
        /// What the system said.
        cause: IoError,
    },
}

/// Why a commit did not come about.
///
/// Except after [`CommitError::Unknown`], nothing was logged. `Transaction::try_commit` leaves the transaction
/// open then, to be retried or aborted; `Transaction::commit` aborts it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// Stores were found that were never declared, in a region that is verified. Declare them and retry, or abort.
    #[error(
        "{count} stores were not declared; the first has {length} bytes at {offset} of the segment {segment}, \
         address {address:#x}: declare it before storing there, or commit without verifying"
    )]
    Undeclared {
        /// The first one's segment.
        segment: std::sync::Arc<str>,
        /// Where in the segment it begins.
        offset: u64,
        /// Its length.
        length: usize,
        /// Its address.
        address: usize,
        /// How many there are.
        count: usize,
    },
    /// Stores were found outside of what the transaction may change. Abort.
    #[error(
        "{count} stores were made outside of what the transaction may change; the first has {} bytes at {} of the segment {}, \
         address {:#x}: abort",
        first.length, first.offset, first.segment, first.address
    )]
    Outside {
        /// The first.
        first: crate::capture::Undeclared,
        /// How many there are.
        count: usize,
    },
    /// The system would not say which pages were stored to. Retry, or abort.
    #[error("the pages that were stored to cannot be found: {cause}; retry, or abort")]
    Capture {
        /// What the system said.
        cause: IoError,
    },
    /// No record can carry it. Commit in parts, or create a larger log.
    #[error("a transaction of {bytes} bytes exceeds the {max} that a record carries; commit it in parts")]
    TooLarge {
        /// Bytes of the record.
        bytes: u64,
        /// Bytes that fit.
        max: usize,
    },
    /// The log is full and truncation could not make room. Mend the cause, then retry.
    #[error("the log is full ({used} of {capacity} bytes){}", because(cause))]
    Full {
        /// Bytes of the log in use.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
        /// What stopped truncation.
        cause: Option<TruncateError>,
    },
    /// The log takes nothing more from this process.
    #[error("{0}")]
    Refused(AppendError),
    /// The record was logged and its fate is unknown, never "aborted": recovery may find it. The transaction
    /// has ended and memory keeps its new values.
    #[error("the commit at LSN {lsn}: {cause}")]
    Unknown {
        /// Where the record begins.
        lsn: Lsn,
        /// Why the answer is missing.
        cause: WaitError,
    },
}

fn because(cause: &Option<TruncateError>) -> String {
    match cause {
        Some(cause) => format!(" and truncation failed: {cause}"),
        None => " and truncation found nothing to free".to_owned(),
    }
}

/// Why a transaction did not get its preamble. It has the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// It is longer than a record's may be.
    #[error("a preamble of {bytes} bytes exceeds {max}; hold fewer locks in one transaction")]
    TooLong {
        /// Bytes given.
        bytes: usize,
        /// The most that fit.
        max: usize,
    },
}

/// Why a foreign record was not applied. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// It changes a segment that is not the region's, or not mapped.
    #[error("the record changes segment {segment}, which is not mapped here")]
    Segment {
        /// The segment's number in the record.
        segment: u32,
    },
    /// It changes several segments, and one region was named.
    #[error("the record changes several segments; a region has one")]
    Several,
    /// It changes bytes outside the mapped ones.
    #[error(
        "the record changes bytes from {start} to {end}; mapped are those from {region_start} to {region_end}"
    )]
    OutOfRegion {
        /// The first byte changed.
        start: u64,
        /// Behind the last byte changed.
        end: u64,
        /// The first byte mapped.
        region_start: u64,
        /// Behind the last byte mapped.
        region_end: u64,
    },
    /// It is in the wide form, which is only read.
    #[error("the record is in the wide form of older programs; apply it, and commit its ranges as one's own")]
    Form,
    /// The transaction declared ranges in the segment that the record changes.
    #[error(
        "the transaction has ranges of its own in the segment that the record changes; commit them apart"
    )]
    Declared,
    /// The region's stores are found by page: nothing can be logged for it but what is found.
    #[error(
        "the region's stores are found by page; have them declared where records of other logs are committed"
    )]
    Captured,
    /// The region belongs to another `Rvm`, or the transaction has too many.
    #[error("the region belongs to another log than the transaction, or is one too many for it")]
    Region,
    /// The commit failed.
    #[error("{0}")]
    Commit(#[from] CommitError),
}

/// Why the commits so far may not be as safe as asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// The log is full and truncation could not make room for what is spooled, which stays in memory. Mend
    /// the cause, then flush again.
    #[error("the log is full ({used} of {capacity} bytes){}", because(cause))]
    Full {
        /// Bytes of the log in use.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
        /// What stopped truncation.
        cause: Option<TruncateError>,
    },
    /// The log takes nothing more from this process. What is spooled will not be recovered.
    #[error("{0}")]
    Refused(AppendError),
    /// The records are in the log and their fate is unknown: recovery may find them.
    #[error("{0}")]
    Unknown(WaitError),
}

/// Why recoverable memory was not closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseError {
    /// Transactions are open (the original's `RVM_EUNCOMMIT`).
    #[error("{transactions} transactions are open; commit or abort them, and drop them, first")]
    Uncommitted {
        /// How many.
        transactions: usize,
    },
    /// Lazy commits could not be made safe.
    #[error("lazy commits could not be made safe before closing: {0}")]
    Flush(#[from] FlushError),
}

/// Why a region stays mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// Open transactions hold ranges in it (the original's `RVM_EUNCOMMIT`).
    #[error("{transactions} open transactions hold ranges in the region; commit or abort them first")]
    Uncommitted {
        /// How many.
        transactions: usize,
    },
}

/// Why a segment stays in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// A region of it is mapped.
    #[error("the segment {path} is mapped; unmap it first")]
    Mapped {
        /// The segment's path.
        path: String,
    },
    /// The table does not know it.
    #[error("this log knows no segment {path}")]
    Unknown {
        /// The path asked for.
        path: String,
    },
    /// Its committed bytes could not be applied.
    #[error("committed bytes could not be applied: {0}")]
    Truncate(#[from] TruncateError),
    /// The table could not be written.
    #[error("{0}")]
    Table(#[from] TableError),
}
