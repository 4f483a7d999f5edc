//! Decides what a failed system call means: *data lost*, *retry*, or *report to the caller*.
//!
//! A call can report that the disk lost *earlier* writes if it reports write-back: `fsync`, `fdatasync`,
//! `msync`, `sync_file_range` and `syncfs` do. Linux reports such a failure once, marks the pages clean, and
//! lets the next sync succeed. So the first report is final (rule 9). The failure of any other call concerns
//! that call only: after a failed `open`, `stat`, `write` or `fallocate`, earlier writes are as they were
//! (rule 17).
//!
//! | class | a caller in the foreground | a background thread |
//! |---|---|---|
//! | [`FailureClass::DataLost`] | gives the file up and reports it | gives the file up and reports it |
//! | [`FailureClass::Retry`] | repeats the call, or returns the error so that its user can | logs it once, repeats after [`RetryBackoff`]'s pause |
//! | [`FailureClass::Report`] | returns the error to its user | logs it once, goes on with other work, retries after [`RetryBackoff`]'s pause |
//!
//! A background thread stops only for lost data. A function that opens, stats and syncs must therefore say
//! which of the three failed: that is [`CallError`]. An error number alone does not tell.
//!
//! Not here: what is written again after a failed write, and how the user learns of it.

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
    /// `open`, `socket`, `accept`, `dup`, `memfd_create`, `epoll_create`: calls that create a descriptor.
    Open,
    /// `stat`, `statfs`, `getdents`, `readlink`, `lseek`: calls that only query.
    Stat,
    /// `read`, `pread`, and the reading side of `copy_file_range`.
    Read,
    /// `write`, `pwrite`, `pwritev`, `copy_file_range` without `O_DSYNC`, buffered or direct.
    Write,
    /// A write to a file opened with `O_DSYNC` or `O_SYNC`, or with `RWF_DSYNC`: a write and a sync in one
    /// call. The caller cannot tell which of the two failed, so it counts as a sync. Use separate calls where
    /// the difference matters.
    SyncedWrite,
    /// `fallocate`, `ftruncate`: calls that change a file's length or reserve space.
    Allocate,
    /// `link`, `rename`, `unlink`, `mkdir`, `mknod`, `symlink`, `chmod`, `chown`, `utimensat`, `setxattr`.
    Name,
    /// `mmap`, `mremap`, `madvise`, `mlock`.
    Map,
    /// `flock`, `fcntl`.
    Lock,
    /// `close`. Network file systems write back in it, so its failure counts as that of a sync. The
    /// descriptor is closed whatever the result: an interrupted call must not be repeated.
    Close,
    /// `fsync`, `fdatasync`, `msync`, `sync_file_range`, `syncfs`.
    Sync,
}

/// The meaning of a failed call: the reaction that it demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Bytes written since the last good sync may be lost, and no later sync will report it. Stop trusting
    /// the file and its page cache: read from the *disk*, and recover from other copies (rule 9).
    DataLost,
    /// The call was refused or interrupted; earlier writes are as they were. Repeat it: the same call can
    /// succeed without any change by the caller.
    Retry,
    /// The call failed; earlier writes are as they were. The same call will fail again until an operator
    /// changes something.
    Report,
}

impl SystemCall {
    /// Whether a failure of this call may report the loss of earlier writes.
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
            // A sync that ran out of memory or space has dropped pages all the same: any error of it is
            // final.
            (call, _) if call.reports_write_back() => FailureClass::DataLost,
            (_, error) if error.can_pass() => FailureClass::Retry,
            _ => FailureClass::Report,
        }
    }
}

impl IoError {
    /// Whether the shortage that this error names can end without any action of the caller: of descriptors,
    /// memory, space, permissions, locks or time.
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

/// A failed system call and its error number.
///
/// Returned by functions that make several calls and whose caller must know whether the sync failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The call.
    pub call: SystemCall,
    /// Its error number.
    pub error: IoError,
}

impl CallError {
    /// The meaning of the failure.
    pub const fn class(self) -> FailureClass {
        self.call.class(self.error)
    }

    /// Whether the failure is final: bytes may be lost.
    pub const fn is_final(self) -> bool {
        matches!(self.class(), FailureClass::DataLost)
    }
}

impl IoError {
    /// Attaches the call that returned this error.
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
