//! Errors of a journaled directory, one variant per reaction of the caller.

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, IoError, LogError, WaitError};

use crate::catalog::CatalogError;
use crate::change::DirectoryDecodeError;
use crate::name_table::NameError;

/// Why a change of a directory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The names do not allow the change. Nothing was changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The disk refused the change. Nothing was changed.
    #[error("the disk: {0}")]
    Disk(IoError),
    /// The journal did not take the record. The change may be lost in a crash.
    #[error("the journal: {0}")]
    Append(#[from] AppendError),
    /// The record was appended but is not known to be held. A crash may or may not lose the change.
    #[error("the journal: {0}")]
    Wait(#[from] WaitError),
    /// The journal is full and a checkpoint could not empty it. Nothing was changed; the next change tries
    /// again.
    #[error("the journal is full and a checkpoint could not empty it: {0}")]
    Full(CheckpointError),
    /// An earlier checkpoint failed, so no change is accepted. The journal keeps every record since the last
    /// good checkpoint. Repair the disk and open the directory again.
    #[error("an earlier checkpoint failed ({0}), so no change is accepted; repair the disk and mount again")]
    Failed(CheckpointError),
}

/// Why a checkpoint failed. The journal keeps the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A sync failed: the disk's content is unknown.
    #[error("syncing: {0}")]
    Sync(IoError),
    /// A file could not be opened for its sync, or the sync was interrupted. The previous catalog remains
    /// valid.
    #[error("opening a file to sync it: {0}")]
    Open(IoError),
    /// The catalog could not be read or written. The previous one remains valid.
    #[error("writing the catalog: {0}")]
    CatalogIo(IoError),
    /// A file's attributes could not be read.
    #[error("reading a file's attributes: {0}")]
    Stat(IoError),
    /// A file that has no name left could not be removed.
    #[error("removing a file that has no name left: {0}")]
    Orphan(IoError),
    /// The journal's own storage failed.
    #[error("the journal: {0}")]
    Log(LogError),
    /// The journal has ended.
    #[error("the journal: {0}")]
    Wait(WaitError),
}

impl CheckpointError {
    /// The system's error; for a journal that has ended, the error for closed journals.
    pub fn io(self) -> IoError {
        match self {
            CheckpointError::Sync(error)
            | CheckpointError::Open(error)
            | CheckpointError::CatalogIo(error)
            | CheckpointError::Stat(error)
            | CheckpointError::Orphan(error)
            | CheckpointError::Log(LogError::Io(error)) => error,
            CheckpointError::Log(_) | CheckpointError::Wait(_) => IoError::EIO,
        }
    }
}

impl ChangeError {
    /// The system's error; for other causes, the closest one.
    pub fn io(self) -> IoError {
        match self {
            ChangeError::Disk(error) => error,
            ChangeError::Full(error) | ChangeError::Failed(error) => error.io(),
            ChangeError::Name(_) | ChangeError::Append(_) | ChangeError::Wait(_) => IoError::EIO,
        }
    }
}

/// Why a directory could not be opened. Neither the journal's records nor the catalog were changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryOpenError {
    /// The catalog cannot be read or written.
    #[error("the catalog: {0}")]
    CatalogIo(IoError),
    /// The catalog is damaged or has another format.
    #[error("the catalog: {0}; restore it: the journal's records refer to its files by number")]
    Catalog(CatalogError),
    /// The catalog belongs to another journal.
    #[error("the catalog belongs to another journal")]
    OtherJournal,
    /// The catalog belongs to another directory.
    #[error(
        "the journal belongs to another directory, or this directory is a copy; mount the original directory with it"
    )]
    OtherDirectory,
    /// The journal has records, but the catalog that they refer to is missing.
    #[error("the journal has records, but the catalog that they refer to is missing; restore it")]
    NoCatalog,
    /// The catalog is not that of a mount that outlives its server, or there is none.
    #[error("the directory is not mounted so that another server can continue, or was recovered since")]
    NotContinued,
    /// A sync of the disk failed, so that its content is unknown.
    #[error("syncing the disk: {0}")]
    Sync(IoError),
    /// The journal does not contain the records that follow the catalog.
    #[error("the catalog ends at LSN {catalog}, but the journal holds LSN {head} to {tail}")]
    Gap {
        /// LSN of the catalog.
        catalog: Lsn,
        /// LSN of the journal's first record.
        head: Lsn,
        /// LSN of the journal's end.
        tail: Lsn,
    },
    /// The journal cannot be read.
    #[error("the journal: {0}")]
    Log(#[from] LogError),
    /// A record is not a valid change of a directory.
    #[error("the record at LSN {lsn}: {reason}")]
    Record {
        /// LSN of the record.
        lsn: Lsn,
        /// Reason that the decoder gave.
        reason: DirectoryDecodeError,
    },
    /// A record contradicts the records before it.
    #[error("the record at LSN {lsn} contradicts the records before it: {reason}")]
    Inconsistent {
        /// LSN of the record.
        lsn: Lsn,
        /// Conflict with the names at that point.
        reason: NameError,
    },
    /// A file that the journal changes is not on the disk.
    #[error("{} is missing from the disk or was replaced by another file; put the original back", .path.escape_ascii())]
    Missing {
        /// Last path of the file.
        path: Vec<u8>,
    },
    /// A file appeared on the disk while the directory was not mounted.
    #[error("{} was added while the directory was not mounted; move it away and try again", .path.escape_ascii())]
    UnknownFile {
        /// Path of the file.
        path: Vec<u8>,
    },
    /// The directory contains a type of file that is not supported, such as a socket.
    #[error("{} is not a regular file, directory or symbolic link; move it away and try again", .path.escape_ascii())]
    Unsupported {
        /// Path of the file.
        path: Vec<u8>,
    },
    /// The directory has too many inodes, or a name in it is not supported.
    #[error("{}: {reason}", .path.escape_ascii())]
    Name {
        /// Path of the entry.
        path: Vec<u8>,
        /// Rule that it breaks.
        reason: NameError,
    },
    /// The disk failed or is full. Repair it and try again: recovery starts over.
    #[error("{}: {error}", .path.escape_ascii())]
    Disk {
        /// File that was being read or written.
        path: Vec<u8>,
        /// Error that the system returned.
        error: IoError,
    },
}
