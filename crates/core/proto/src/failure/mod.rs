//! Decides what a failed system call means: *data lost*, *retry*, or *report to the caller*.
//!
//! One call can say that the disk lost what was written earlier: the one that reports write-back. `fsync`,
//! `fdatasync`, `msync`, `sync_file_range` and `syncfs` do. Linux reports such a failure once, marks the
//! pages clean, and lets the next sync succeed. So the first report is final (rule 9). Every other call
//! speaks of itself only. A failed `open`, `stat`, `write` or `fallocate` leaves what was written before as
//! it was (rule 17).
//!
//! | class | a caller in the foreground | a thread that upholds a promise |
//! |---|---|---|
//! | [`FailureClass::DataLost`] | gives up the file, says so | gives up the file, says so |
//! | [`FailureClass::Retry`] | repeats the call, or hands the error to its user, who repeats | logs it once, repeats after [`RetryBackoff`]'s pause |
//! | [`FailureClass::Report`] | hands the error to its user | logs it once, goes on with all other work, asks again after [`RetryBackoff`]'s pause |
//!
//! The right-hand column never ends but for data lost. A function that opens, stats and syncs must therefore
//! say which of the three failed: that is [`CallError`]. An error number alone does not tell.
//!
//! The module leaves to others: what is written again after a failed write, and who is told.

mod backoff;
mod policy;
#[cfg(test)]
mod tests;

pub use backoff::{RetryBackoff, RetryPause};
pub use policy::{RetryPolicy, RetryVerdict};

use core::fmt;

use crate::port::IoError;

/// The system call that failed, as far as the meaning of its failure depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SystemCall {
    /// `open`, `socket`, `accept`, `dup`, `memfd_create`, `epoll_create`: calls that make a descriptor.
    Open,
    /// `stat`, `statfs`, `getdents`, `readlink`, `lseek`: calls that look.
    Stat,
    /// `read`, `pread`, and the reading side of `copy_file_range`.
    Read,
    /// `write`, `pwrite`, `pwritev`, `copy_file_range`, through the page cache or around it. Without
    /// `O_DSYNC`.
    Write,
    /// A write to a file opened with `O_DSYNC` or `O_SYNC`, or with `RWF_DSYNC`: a write and a sync in one
    /// call. Whose failure it reports cannot be told, so it counts as a sync. Write and sync apart where the
    /// difference matters.
    SyncedWrite,
    /// `fallocate`, `ftruncate`: calls that change a file's length or reserve its room.
    Allocate,
    /// `link`, `rename`, `unlink`, `mkdir`, `mknod`, `symlink`, `chmod`, `chown`, `utimensat`, `setxattr`.
    Name,
    /// `mmap`, `mremap`, `madvise`, `mlock`.
    Map,
    /// `flock`, `fcntl`.
    Lock,
    /// `close`. Network file systems write back in it, so it reports as a sync does. The descriptor is gone
    /// whatever it says: a call that was interrupted must not be repeated.
    Close,
    /// `fsync`, `fdatasync`, `msync`, `sync_file_range`, `syncfs`.
    Sync,
}

/// The meaning of a failed call: the reaction that it demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Bytes written since the last good sync may be lost, and no later sync says so. Believe the file no
    /// more: read what the *disk* has, not the page cache, and recover from other copies (rule 9).
    DataLost,
    /// The call was refused or interrupted; earlier writes are as they were. The same call can succeed
    /// without any change by the caller: repeat it.
    Retry,
    /// The call failed; earlier writes are as they were. The same call fails again until somebody changes
    /// something.
    Report,
}

impl SystemCall {
    /// Whether a failure of this call may be the report of an earlier write that was lost.
    pub const fn reports_write_back(self) -> bool {
        match self {
            SystemCall::Sync | SystemCall::SyncedWrite | SystemCall::Close => true,
            SystemCall::Open
            | SystemCall::Stat
            | SystemCall::Read
            | SystemCall::Write
            | SystemCall::Allocate
            | SystemCall::Name
            | SystemCall::Map
            | SystemCall::Lock => false,
        }
    }

    /// Decides what `error` of this call means.
    pub const fn class(self, error: IoError) -> FailureClass {
        match (self, error) {
            (SystemCall::Close, IoError::EINTR) => FailureClass::Report,
            (_, IoError::EINTR) => FailureClass::Retry,
            // A sync that ran out of memory or room has given up pages all the same: any error of it is
            // final.
            (call, _) if call.reports_write_back() => FailureClass::DataLost,
            (_, error) if error.can_pass() => FailureClass::Retry,
            _ => FailureClass::Report,
        }
    }
}

impl IoError {
    /// Whether the want that this error names can end without the caller's doing: of descriptors, memory,
    /// room, rights, locks, time.
    const fn can_pass(self) -> bool {
        matches!(
            self,
            IoError::EPERM
                | IoError::EINTR
                | IoError::EAGAIN
                | IoError::ENOMEM
                | IoError::EACCES
                | IoError::EBUSY
                | IoError::ENFILE
                | IoError::EMFILE
                | IoError::ETXTBSY
                | IoError::ENOSPC
                | IoError::ENOLCK
                | IoError::ENOBUFS
                | IoError::ETIMEDOUT
                | IoError::EDQUOT
        )
    }
}

/// A failed system call: which one, and its error number.
///
/// For functions that make several calls, whose caller must know whether it was the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The call.
    pub call: SystemCall,
    /// The number that it left.
    pub error: IoError,
}

impl CallError {
    /// The meaning of the failure.
    pub const fn class(self) -> FailureClass {
        self.call.class(self.error)
    }

    /// Whether the failure is final: write-back lost bytes.
    pub const fn is_final(self) -> bool {
        matches!(self.class(), FailureClass::DataLost)
    }
}

impl IoError {
    /// Names the call that left this error.
    pub const fn of(self, call: SystemCall) -> CallError {
        CallError { call, error: self }
    }
}

impl From<CallError> for IoError {
    fn from(failure: CallError) -> IoError {
        failure.error
    }
}

impl fmt::Display for SystemCall {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            SystemCall::Open => "opening",
            SystemCall::Stat => "looking up",
            SystemCall::Read => "reading",
            SystemCall::Write => "writing",
            SystemCall::SyncedWrite => "writing and syncing",
            SystemCall::Allocate => "allocating",
            SystemCall::Name => "naming",
            SystemCall::Map => "mapping",
            SystemCall::Lock => "locking",
            SystemCall::Close => "closing",
            SystemCall::Sync => "syncing",
        })
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.call, self.error)
    }
}

impl core::error::Error for CallError {}
