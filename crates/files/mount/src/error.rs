//! Why a folder is not mounted, or not given back.

use std::io;
use std::path::PathBuf;

use netram_files::{CheckpointError, OpenError};
use netram_journal::OpenError as JournalError;
use netram_store::{HomeError, SettingsError};

use crate::ground::GroundError;
use crate::stamp::OlderJournal;
use crate::users::User;

/// Why a folder is not mounted, or not given back. What was acknowledged is in the journal, and at its lenders.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no such folder.
    #[error("{}: {source}", .dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is mounted.
    #[error("{} is mounted already", .dir.display())]
    Mounted {
        /// The folder.
        dir: PathBuf,
    },
    /// It is not mounted.
    #[error("{} is not mounted by netram", .dir.display())]
    NotMounted {
        /// The folder.
        dir: PathBuf,
    },
    /// Somebody has something open there.
    #[error("{} is in use: {user}; stop it first", .dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// One of them.
        user: User,
    },
    /// The journal is a copy, or an older one that was put back.
    #[error("{}: {older}", .dir.display())]
    Older {
        /// The folder.
        dir: PathBuf,
        /// What it was last told, and what the journal has.
        older: Box<OlderJournal>,
    },
    /// The journal is inside of the folder, or the folder inside of the journal.
    #[error("the journal {} and {} must not be in each other", .journal.display(), .dir.display())]
    Nested {
        /// The folder.
        dir: PathBuf,
        /// The journal.
        journal: PathBuf,
    },
    /// The journal could not be made.
    #[error(transparent)]
    Create(#[from] netram_journal::CreateError),
    /// Its settings are of no use.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The same.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The folder could not be taken, or given back.
    #[error(transparent)]
    Ground(#[from] GroundError),
    /// What the journal has could not be done again.
    #[error("{}: {source}", .dir.display())]
    Open {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// The kernel did not mount it.
    #[error("mounting {}: {source}; it needs root or the fusermount3 of Debian's fuse3, and the kernel's FUSE (`modprobe fuse`)", .dir.display())]
    Fuse {
        /// The folder.
        dir: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// It could not be unmounted.
    #[error("unmounting {}: {source}", .dir.display())]
    Unmount {
        /// The folder.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What was changed could not be brought to the disk. The journal keeps it: `netram recover` tries again.
    #[error("{}: the last of it could not be brought to the disk ({source}), and is in the journal; mend that, and run `netram recover`", .dir.display())]
    Close {
        /// The folder.
        dir: PathBuf,
        /// Why.
        source: CheckpointError,
    },
}
