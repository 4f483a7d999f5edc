//! Errors of the log and its regions as a whole: one enum per operation, one variant per reaction of the
//! caller.

mod commit;
mod disk;
mod range;

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, IoError, LogError, RecordKind, WaitError};

pub use commit::{CaptureError, ForeignError, PreambleError, RvmCommitError};
pub use disk::{RecordDecodeError, SegmentError, SegmentTableError};
pub use range::RangeError;

/// Why recoverable memory could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RvmOpenError {
    /// The truncation threshold is not a percentage from 1 to 95.
    #[error("the truncation threshold is {percent} %; choose a value from 1 to 95")]
    Threshold {
        /// The threshold in the options, in percent.
        percent: u8,
    },
    /// The segment table is unusable.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
    /// Recovery stopped. The log keeps every record; remove the cause and open again.
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
        /// First byte of the request.
        offset: u64,
        /// First byte behind the request.
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
    /// The request is empty or extends beyond the segment.
    #[error("bytes {offset}.. (length {length}) lie outside {path}, which has {size} bytes")]
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
    /// The requested address range is already mapped (the original's `RVM_EVM_OVERLAP`).
    #[error("part of the {length} bytes at {address:#x} is already mapped; choose another address")]
    AddressTaken {
        /// The requested address.
        address: usize,
        /// Length of the mapping, in bytes.
        length: usize,
    },
    /// The requested address is zero or not a multiple of the page size.
    #[error("a region cannot be mapped at {address:#x}; choose a nonzero multiple of {page}")]
    AddressUnaligned {
        /// The requested address.
        address: usize,
        /// The page size.
        page: u64,
    },
    /// The system cannot map memory at the requested address, for example because it lies beyond the address
    /// space.
    #[error("{length} bytes cannot be mapped at {address:#x} ({cause}); choose another address")]
    AddressUnusable {
        /// The requested address.
        address: usize,
        /// Length of the mapping, in bytes.
        length: usize,
        /// The system's error.
        cause: IoError,
    },
    /// The segment file is unusable.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// The segment could not be entered in the segment table.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
    /// Committed bytes of this segment could not be applied before it was mapped again.
    #[error("committed bytes could not be applied before mapping: {0}")]
    Truncate(#[from] TruncateError),
}

/// Why a region stays mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnmapError {
    /// Open transactions have ranges in the region (the original's `RVM_EUNCOMMIT`).
    #[error("{transactions} open transactions have ranges in the region; commit or abort them first")]
    Uncommitted {
        /// Number of these transactions.
        transactions: usize,
    },
}

/// Why earlier commits may not be as safe as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlushError {
    /// The log is full and truncation could not make room for the spooled commits, which stay in memory.
    /// Remove the cause, then flush again.
    #[error("the log is full ({used} of {capacity} bytes){}", because(cause))]
    Full {
        /// Bytes of the log in use.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
        /// Why truncation failed; `None` if it found nothing to free.
        cause: Option<TruncateError>,
    },
    /// The log accepts no more records from this process. Spooled commits are lost when it ends.
    #[error("{0}")]
    Refused(AppendError),
    /// The records are in the log, but their outcome is unknown: recovery may find them.
    #[error("{0}")]
    Unknown(WaitError),
}

/// Why truncation or recovery stopped. Nothing is lost: the log keeps every record, and the next attempt
/// starts again from its head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TruncateError {
    /// A segment file cannot take its bytes.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// A segment's stamp could not be recorded in the segment table.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
    /// The log could not be read or trimmed.
    #[error("{0}")]
    Log(LogError),
    /// The newest records did not reach the log's disk.
    #[error("{0}")]
    Wait(WaitError),
    /// Spooled lazy commits could not be logged, so they cannot be applied.
    #[error("lazy commits could not be logged before truncation: {0}")]
    Append(AppendError),
    /// A record has a valid checksum but does not decode as a transaction.
    #[error("the record at LSN {lsn} is damaged: {cause}; run `netram journal check`")]
    Damaged {
        /// Where the record begins.
        lsn: Lsn,
        /// The defect.
        cause: RecordDecodeError,
    },
    /// The log holds records of another kind of user, such as a volume, which truncation would destroy.
    #[error("the record at LSN {lsn} has kind {}: this log does not belong to recoverable memory", kind.0)]
    ForeignKind {
        /// Where the record begins.
        lsn: Lsn,
        /// Its kind.
        kind: RecordKind,
    },
    /// Another program applies the records ([`crate::TruncationPolicy::Elsewhere`]).
    #[error("another program applies this log's records and decides when they are trimmed")]
    Elsewhere,
    /// The records are applied here, so only this process can decide that they are no longer needed.
    #[error("this log is trimmed by truncation, which applies its records here; call truncate instead")]
    Here,
    /// The program that applies the records has not trimmed the log within the allowed time.
    #[error(
        "the program that applies this log's records has not trimmed it within {patience_ms} ms; check that \
         program"
    )]
    NotTrimmed {
        /// How long the caller waited, in milliseconds.
        patience_ms: u128,
    },
    /// A record names a segment that the segment table does not know.
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

/// Why recoverable memory was not closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RvmCloseError {
    /// Transactions are open (the original's `RVM_EUNCOMMIT`).
    #[error("{transactions} transactions are open; commit or abort them, and drop them, first")]
    Uncommitted {
        /// Number of these transactions.
        transactions: usize,
    },
    /// Lazy commits could not be made safe before closing.
    #[error("lazy commits could not be made safe before closing: {0}")]
    Flush(#[from] FlushError),
    /// Commits could not be applied to their segments. The log keeps them: remove the cause and close again.
    /// Or drop the log, and the next opening applies them.
    #[error("commits could not be applied to their segments before closing, and stay in the log: {0}")]
    Apply(#[from] TruncateError),
}

/// Why a segment stays in the segment table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// A region of the segment is mapped.
    #[error("the segment {path} is mapped; unmap it first")]
    Mapped {
        /// The segment's path.
        path: String,
    },
    /// The segment table has no such segment.
    #[error("this log knows no segment {path}")]
    Unknown {
        /// The path asked for.
        path: String,
    },
    /// Committed bytes of the segment could not be applied.
    #[error("committed bytes could not be applied: {0}")]
    Truncate(#[from] TruncateError),
    /// The segment table could not be written.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
}

/// Ending of the message for a full log: why truncation did not help.
fn because(cause: &Option<TruncateError>) -> String {
    match cause {
        Some(cause) => format!(" and truncation failed: {cause}"),
        None => " and truncation found nothing to free".to_owned(),
    }
}
