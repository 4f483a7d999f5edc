//! Why a directory is not mounted, or not given back.

use std::io;
use std::path::PathBuf;

use netram_files::{CheckpointError, DirectoryOpenError};
use netram_journal::JournalOpenError as JournalError;
use netram_store::{StoreError, StoreSettingsError};

use crate::backing_directory::BackingDirectoryError;
use crate::stamp::StaleJournal;
use crate::users::MountUser;

/// Why a directory is not mounted, or not given back. What was acknowledged is in the journal, and at its
/// lenders.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no such directory.
    #[error("{}: {source}", .dir.display())]
    NoDirectory {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is mounted.
    #[error("{} is mounted already", .dir.display())]
    Mounted {
        /// The directory.
        dir: PathBuf,
    },
    /// It is not mounted.
    #[error("{} is not mounted by netram", .dir.display())]
    NotMounted {
        /// The directory.
        dir: PathBuf,
    },
    /// Somebody has something open there.
    #[error("{} is in use: {user}; stop it first", .dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// One of them.
        user: MountUser,
    },
    /// The journal is a copy, or an older one that was put back.
    #[error("{}: {older}", .dir.display())]
    StaleJournal {
        /// The directory.
        dir: PathBuf,
        /// What it was last told, and what the journal has.
        older: Box<StaleJournal>,
    },
    /// The journal is inside of the directory, or the directory inside of the journal.
    #[error("the journal {} and {} must not be in each other", .journal.display(), .dir.display())]
    Nested {
        /// The directory.
        dir: PathBuf,
        /// The journal.
        journal: PathBuf,
    },
    /// The journal could not be made.
    #[error(transparent)]
    Create(#[from] netram_journal::JournalCreateError),
    /// Its settings are of no use.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same.
    #[error(transparent)]
    Settings(#[from] StoreSettingsError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The directory could not be taken, or given back.
    #[error(transparent)]
    Backing(#[from] BackingDirectoryError),
    /// What the journal has could not be done again.
    #[error("{}: {source}", .dir.display())]
    Open {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: DirectoryOpenError,
    },
    /// The kernel did not mount it.
    #[error("mounting {}: {source}; it needs root or the fusermount3 of Debian's fuse3, and the kernel's FUSE (`modprobe fuse`)", .dir.display())]
    Fuse {
        /// The directory.
        dir: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It could not be unmounted.
    #[error("unmounting {}: {source}", .dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was changed could not be brought to the disk. The journal keeps it: `netram recover` tries again.
    #[error("{}: the last of it could not be brought to the disk ({source}), and is in the journal; mend that, and run `netram recover`", .dir.display())]
    Close {
        /// The directory.
        dir: PathBuf,
        /// Why.
        source: CheckpointError,
    },
}
