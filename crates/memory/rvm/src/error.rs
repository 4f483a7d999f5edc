//! One error an operation, one variant a reaction. Here those of the log and its regions as a whole.

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
    /// The truncation threshold is no percentage from 1 to 95.
    #[error("the truncation threshold is {percent} %; choose 1 to 95")]
    Threshold {
        /// What the options said.
        percent: u8,
    },
    /// The segment table is unusable.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
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
    Table(#[from] SegmentTableError),
    /// Committed bytes of this segment could not be applied before mapping it again.
    #[error("committed bytes could not be applied before mapping: {0}")]
    Truncate(#[from] TruncateError),
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

/// Why truncation or recovery stopped. Nothing is lost: the log keeps every record, and the next attempt
/// starts again from its head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TruncateError {
    /// A segment file cannot take its bytes.
    #[error("{0}")]
    Segment(#[from] SegmentError),
    /// A segment's stamp could not be written down in the table.
    #[error("{0}")]
    Table(#[from] SegmentTableError),
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
        cause: RecordDecodeError,
    },
    /// The log holds records of another user (a disk volume, say), which truncation would destroy.
    #[error("the record at LSN {lsn} has kind {}: this log is not used for recoverable memory", kind.0)]
    ForeignKind {
        /// Where the record begins.
        lsn: Lsn,
        /// Its kind.
        kind: RecordKind,
    },
    /// The records are another's to apply ([`crate::TruncationPolicy::Elsewhere`]).
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

/// Why recoverable memory was not closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RvmCloseError {
    /// Transactions are open (the original's `RVM_EUNCOMMIT`).
    #[error("{transactions} transactions are open; commit or abort them, and drop them, first")]
    Uncommitted {
        /// How many.
        transactions: usize,
    },
    /// Lazy commits could not be made safe.
    #[error("lazy commits could not be made safe before closing: {0}")]
    Flush(#[from] FlushError),
    /// Commits could not be applied to their segments. The log keeps them: mend the cause and close again, or
    /// drop the log, and the next opening applies them.
    #[error("commits could not be applied to their segments before closing, and stay in the log: {0}")]
    Apply(#[from] TruncateError),
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
    Table(#[from] SegmentTableError),
}

/// Why truncation did not help where a log is full.
fn because(cause: &Option<TruncateError>) -> String {
    match cause {
        Some(cause) => format!(" and truncation failed: {cause}"),
        None => " and truncation found nothing to free".to_owned(),
    }
}
