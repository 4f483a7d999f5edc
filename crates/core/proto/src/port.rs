//! The two traits through which the higher layers (recoverable memory, volumes, shared regions) reach
//! storage: [`RecordLog`] and [`StorageFile`].
//!
//! `netram-journal` implements them with sockets and real files, `netram-sim` with a virtual network, clock
//! and disk. Code written against these traits runs unchanged in both.

use core::fmt;

use crate::id::{Epoch, Lsn};

/// Why an operation on a file failed, as the operating system's error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoError {
    /// The POSIX error number.
    pub errno: i32,
}

impl IoError {
    /// Operation not permitted.
    pub const EPERM: IoError = IoError { errno: 1 };
    /// No such file.
    pub const ENOENT: IoError = IoError { errno: 2 };
    /// The call was interrupted by a signal.
    pub const EINTR: IoError = IoError { errno: 4 };
    /// Input/output error.
    pub const EIO: IoError = IoError { errno: 5 };
    /// The resource is unavailable for now.
    pub const EAGAIN: IoError = IoError { errno: 11 };
    /// Out of memory.
    pub const ENOMEM: IoError = IoError { errno: 12 };
    /// Permission denied.
    pub const EACCES: IoError = IoError { errno: 13 };
    /// The device or file is in use.
    pub const EBUSY: IoError = IoError { errno: 16 };
    /// The system's table of open files is full.
    pub const ENFILE: IoError = IoError { errno: 23 };
    /// The process has no descriptor left.
    pub const EMFILE: IoError = IoError { errno: 24 };
    /// The program file is in use.
    pub const ETXTBSY: IoError = IoError { errno: 26 };
    /// No space left on the device.
    pub const ENOSPC: IoError = IoError { errno: 28 };
    /// No lock is left.
    pub const ENOLCK: IoError = IoError { errno: 37 };
    /// No buffer space is left.
    pub const ENOBUFS: IoError = IoError { errno: 105 };
    /// The call timed out.
    pub const ETIMEDOUT: IoError = IoError { errno: 110 };
    /// The user's disk quota is used up.
    pub const EDQUOT: IoError = IoError { errno: 122 };
    /// The file ends before the requested bytes.
    pub const EOF: IoError = IoError { errno: 61 };
}

impl fmt::Display for IoError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            2 => out.write_str("no such file (ENOENT)"),
            1 => out.write_str("operation not permitted (EPERM)"),
            4 => out.write_str("interrupted by a signal (EINTR)"),
            5 => out.write_str("input/output error (EIO)"),
            12 => out.write_str("out of memory (ENOMEM)"),
            13 => out.write_str("permission denied (EACCES)"),
            22 => out.write_str("invalid argument (EINVAL)"),
            23 => out.write_str("the system has too many open files (ENFILE)"),
            24 => out.write_str("this process has too many open files (EMFILE)"),
            28 => out.write_str("no space left on the device (ENOSPC)"),
            30 => out.write_str("read-only file system (EROFS)"),
            122 => out.write_str("disk quota exceeded (EDQUOT)"),
            61 => out.write_str("the file ends before the bytes asked for"),
            other => write!(out, "operating system error {other}"),
        }
    }
}

impl core::error::Error for IoError {}

/// A file with positioned reads and writes and a durable sync.
///
/// All methods take `&self`; callers must not let writes to the same bytes race.
pub trait StorageFile {
    /// The file's size in bytes.
    ///
    /// # Errors
    ///
    /// The file's metadata could not be read.
    fn size(&self) -> Result<u64, IoError>;
    /// Fills `into` from `offset`.
    ///
    /// # Errors
    ///
    /// [`IoError::EOF`] if the file ends before `into` is full; otherwise the error of the read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError>;
    /// Writes all of `bytes` at `offset`. The bytes are not durable before [`StorageFile::sync`].
    ///
    /// # Errors
    ///
    /// The error of the write. Part of `bytes` may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError>;
    /// Makes everything written before durable (`fdatasync`).
    ///
    /// # Errors
    ///
    /// After an error, nothing written since the last good sync may be assumed to be on the disk, and a later
    /// good sync does not change that. Only a sync that a signal interrupted (EINTR) may be repeated.
    fn sync(&self) -> Result<(), IoError>;
}

/// The type of a record's payload. The log itself does not interpret payloads.
///
/// Kinds below 16 are reserved for the journal, 16 to 127 belong to its users, and there are no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKind(pub u8);

/// One record as read back from a log.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where the record begins.
    pub lsn: Lsn,
    /// Where the next record begins.
    pub next: Lsn,
    /// The epoch of its writer.
    pub epoch: Epoch,
    /// The type of the payload.
    pub kind: RecordKind,
    /// The bytes given to [`RecordLog::append`].
    pub payload: &'a [u8],
}

/// The position of an appended record, to be passed to [`RecordLog::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitTicket {
    /// Where the record begins.
    pub lsn: Lsn,
    /// Where the next record begins; the commit is done when everything below it is held.
    pub end: Lsn,
}

/// How safe a commit must be before `wait` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durability {
    /// The members satisfy the commit rule, or the local disk has the record, whichever comes first.
    #[default]
    Remote,
    /// The local disk has the record.
    Disk,
    /// The members satisfy the commit rule *and* the local disk has the record.
    Both,
    /// Do not wait. The record is sent and written soon; until then a crash may lose the whole record.
    Lazy,
}

/// The copies of a commit that were known when `wait` returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitVotes {
    /// Number of members of the durable view that acknowledged it.
    pub members: u8,
    /// Whether the members satisfied the commit rule.
    pub rule: bool,
    /// Whether the local disk has it.
    pub disk: bool,
}

/// Why an append was refused. Nothing was written; the log is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// A newer writer owns the journal. Stop; never retry.
    Fenced {
        /// This writer's epoch.
        held: Epoch,
        /// The epoch that fenced it.
        seen: Epoch,
    },
    /// The record can never fit. Split it, or create a larger log.
    TooLarge {
        /// Payload bytes requested.
        bytes: usize,
        /// Payload bytes that fit.
        max: usize,
    },
    /// The log file has no space left. [`RecordLog::trim`] it, then retry.
    Full {
        /// Bytes in use, from the head to the tail.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
    },
    /// A sync of the local log failed, or its writes failed for too long. The journal is read-only; reopen it
    /// to recover.
    DiskFailed(IoError),
    /// The journal was closed (or, in the simulator, its process has crashed).
    Closed,
}

/// Why a wait ended without the requested durability. The record's fate is *unknown*, never "aborted":
/// recovery may find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// A newer writer owns the journal.
    Fenced {
        /// This writer's epoch.
        held: Epoch,
        /// The epoch that fenced it.
        seen: Epoch,
    },
    /// The local log failed and the members cannot satisfy the rule.
    DiskFailed(IoError),
    /// The journal was closed (or its process crashed) before the answer.
    Closed,
}

/// Why the log could not be trimmed or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogError {
    /// The local log's file failed.
    Io(IoError),
    /// A record below the stable LSN is damaged. This is corruption, never the end of the log.
    Corrupt(Lsn),
    /// The position is not between the head and the stable LSN, or not where a record begins.
    OutOfRange(Lsn),
    /// The journal was closed (or its process crashed).
    Closed,
}

impl fmt::Display for AppendError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppendError::Fenced { held, seen } => {
                write!(
                    out,
                    "fenced: this writer has epoch {held}, and a newer writer took epoch {seen}; stop this process"
                )
            }
            AppendError::TooLarge { bytes, max } => {
                write!(
                    out,
                    "a record of {bytes} bytes exceeds the {max} that fit; split it or create a larger log"
                )
            }
            AppendError::Full { used, capacity } => {
                write!(
                    out,
                    "the log is full: {used} of {capacity} bytes in use; truncate it, then retry"
                )
            }
            AppendError::DiskFailed(error) => write!(
                out,
                "the local log failed ({error}) and the journal is read-only; repair the disk and reopen the journal to recover"
            ),
            AppendError::Closed => out.write_str("the journal is closed"),
        }
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitError::Fenced { held, seen } => write!(
                out,
                "outcome unknown: this writer (epoch {held}) was fenced by a newer writer (epoch {seen})"
            ),
            WaitError::DiskFailed(error) => {
                write!(
                    out,
                    "outcome unknown: the local log failed ({error}) and too few members hold the record"
                )
            }
            WaitError::Closed => out.write_str("outcome unknown: the journal was closed before the answer"),
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogError::Io(error) => write!(out, "the local log failed: {error}"),
            LogError::Corrupt(lsn) => {
                write!(
                    out,
                    "the record at LSN {lsn} is damaged although it was on the disk; run `netram journal check`"
                )
            }
            LogError::OutOfRange(lsn) => write!(
                out,
                "LSN {lsn} is not a record between the log's head and its stable end"
            ),
            LogError::Closed => out.write_str("the journal is closed"),
        }
    }
}

impl core::error::Error for AppendError {}
impl core::error::Error for WaitError {}
impl core::error::Error for LogError {}

/// The positions of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// Start of the oldest record kept.
    pub head: Lsn,
    /// Everything below is on the local disk and acknowledged.
    pub stable: Lsn,
    /// Everything below is acknowledged: held as the commit rule demands, or on the local disk. For a node of
    /// a shared region, the region's server may hold it instead.
    pub acked: Lsn,
    /// Where the next record goes.
    pub tail: Lsn,
    /// Bytes of records that the log file can hold between head and tail.
    pub capacity: u64,
    /// The largest payload that one record can carry.
    pub payload_max: usize,
}

/// A recovered, open log with one writer.
///
/// Methods take `&self`: a log is shared by threads and groups their commits.
pub trait RecordLog {
    /// Appends one record of `length` payload bytes. `fill` writes all of them, straight into the log's ring.
    ///
    /// Records stand in the log in the order of these calls. When the window is full, the call waits for the
    /// disk (backpressure). It never waits for log space.
    ///
    /// # Errors
    ///
    /// [`AppendError::Full`] if the log file lacks space: trim it, then retry. The other variants are final
    /// for this record or this writer.
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError>;

    /// Waits until the record of `ticket`, and every record before it, is as safe as `durability` demands.
    ///
    /// # Errors
    ///
    /// The writer was fenced, the disk failed, or the journal was closed. The record's outcome is then
    /// unknown.
    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError>;

    /// The log's positions at this moment.
    fn state(&self) -> LogState;

    /// Calls `each` for every record from `from` (the head, or the `next` of a record) to the stable LSN,
    /// until `each` returns `false`. Returns the start of the first record that was not passed.
    ///
    /// # Errors
    ///
    /// `from` is out of range, the file failed, a record is damaged, or the journal was closed.
    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError>;

    /// Discards everything below `head`, which must be at most the stable LSN and the start of a record.
    /// Returns when the new head is durable; the space may then be reused.
    ///
    /// # Errors
    ///
    /// `head` is out of range, the file failed, or the journal was closed. The old head then stays.
    fn trim(&self, head: Lsn) -> Result<(), LogError>;
}

impl<L: RecordLog + ?Sized> RecordLog for &L {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        (**self).append(kind, length, fill)
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        (**self).wait(ticket, durability)
    }

    fn state(&self) -> LogState {
        (**self).state()
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        (**self).read(from, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        (**self).trim(head)
    }
}
