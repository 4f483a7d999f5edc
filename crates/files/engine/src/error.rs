//! What can go wrong, by what the caller does about it.

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, IoError, LogError, WaitError};

use crate::catalog::CatalogError;
use crate::change::DirectoryDecodeError;
use crate::name_table::NameError;

/// Why something was not done to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The names do not allow it. Nothing was changed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The disk beneath refused it. Nothing was changed.
    #[error("the disk: {0}")]
    Disk(IoError),
    /// The journal did not take it: what was changed may be gone after a crash.
    #[error("the journal: {0}")]
    Append(#[from] AppendError),
    /// What becomes of it in a crash is not known.
    #[error("the journal: {0}")]
    Wait(#[from] WaitError),
    /// The journal is full, and could not be emptied. Nothing was changed by this; the next one tries again.
    #[error("the journal is full, and could not be emptied: {0}")]
    Full(CheckpointError),
    /// A checkpoint has failed before, and nothing more is changed: the journal keeps all since the one
    /// before it. Mend the disk, and open the directory again.
    #[error("an earlier checkpoint failed ({0}), and nothing more is changed; mend the disk and mount again")]
    Failed(CheckpointError),
}

/// Why what was changed could not be brought to the disk. The journal keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// A sync failed: nobody knows what of it is on the disk.
    #[error("syncing: {0}")]
    Sync(IoError),
    /// A file could not be opened to be synced, or the sync was interrupted. The catalog before is as good as
    /// it was.
    #[error("opening a file to sync it: {0}")]
    Open(IoError),
    /// The catalog could not be written. The one before is as good as it was.
    #[error("writing the catalog: {0}")]
    CatalogIo(IoError),
    /// A file could not be looked at.
    #[error("looking at a file: {0}")]
    Stat(IoError),
    /// The journal's own log failed.
    #[error("the journal: {0}")]
    Log(LogError),
    /// The journal ended.
    #[error("the journal: {0}")]
    Wait(WaitError),
}

impl CheckpointError {
    /// What the system said; of a journal that ended, that it takes nothing any more.
    pub fn io(self) -> IoError {
        match self {
            CheckpointError::Sync(error)
            | CheckpointError::Open(error)
            | CheckpointError::CatalogIo(error)
            | CheckpointError::Stat(error)
            | CheckpointError::Log(LogError::Io(error)) => error,
            CheckpointError::Log(_) | CheckpointError::Wait(_) => IoError::EIO,
        }
    }
}

impl ChangeError {
    /// What the system said, as far as it was the system.
    pub fn io(self) -> IoError {
        match self {
            ChangeError::Disk(error) => error,
            ChangeError::Full(error) | ChangeError::Failed(error) => error.io(),
            ChangeError::Name(_) | ChangeError::Append(_) | ChangeError::Wait(_) => IoError::EIO,
        }
    }
}

/// Why a directory could not be opened. Nothing that the journal has was lost by trying.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryOpenError {
    /// The catalog cannot be read, or written.
    #[error("the catalog: {0}")]
    CatalogIo(IoError),
    /// The catalog is of no use.
    #[error("the catalog: {0}; restore it, for the journal's records name files by it")]
    Catalog(CatalogError),
    /// The catalog is of another journal.
    #[error("the catalog belongs to another journal")]
    OtherJournal,
    /// The catalog is of a directory that is not this one.
    #[error(
        "the journal is another directory's, or this one is a copy of its directory; mount that directory on it"
    )]
    OtherDirectory,
    /// The journal has records, and the catalog by which they name files is gone.
    #[error("the journal has records of files, and the catalog that names them is missing; restore it")]
    NoCatalog,
    /// The journal does not have what follows the catalog.
    #[error("the catalog ends at LSN {catalog}, and the journal has LSN {head} to {tail}")]
    Gap {
        /// Where the catalog is.
        catalog: Lsn,
        /// The journal's first record.
        head: Lsn,
        /// Its end.
        tail: Lsn,
    },
    /// The journal cannot be read.
    #[error("the journal: {0}")]
    Log(#[from] LogError),
    /// A record is no change of a directory.
    #[error("the record at LSN {lsn}: {reason}")]
    Record {
        /// Where it begins.
        lsn: Lsn,
        /// What is wrong with it.
        reason: DirectoryDecodeError,
    },
    /// A record does not fit those before it.
    #[error("the record at LSN {lsn} does not fit what is before it: {reason}")]
    Inconsistent {
        /// Where it begins.
        lsn: Lsn,
        /// Why.
        reason: NameError,
    },
    /// A file that the journal changes is not on the disk.
    #[error("{} is not on the disk under any name, or another file is in its place; put back the one that was there", .path.escape_ascii())]
    Missing {
        /// What it was called.
        path: Vec<u8>,
    },
    /// A file that came to the disk while the directory was not mounted.
    #[error("{} was put there while the directory was not mounted; move it away, and try again", .path.escape_ascii())]
    UnknownFile {
        /// Where it is.
        path: Vec<u8>,
    },
    /// Something that directories do not have.
    #[error("{} is no file, directory or symbolic link; move it away, and try again", .path.escape_ascii())]
    Unsupported {
        /// Where it is.
        path: Vec<u8>,
    },
    /// There is too much in it, or it is named in a way that is not taken.
    #[error("{}: {reason}", .path.escape_ascii())]
    Name {
        /// What.
        path: Vec<u8>,
        /// Why.
        reason: NameError,
    },
    /// The disk failed, or is full. Mend it, and try again: recovery begins anew.
    #[error("{}: {error}", .path.escape_ascii())]
    Disk {
        /// What was to be read or written.
        path: Vec<u8>,
        /// What the system said.
        error: IoError,
    },
}
