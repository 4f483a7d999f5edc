//! Errors of mounting, unmounting and recovering a directory.

use std::io;
use std::path::PathBuf;

use netram_files::{CheckpointError, DirectoryOpenError};
use netram_journal::JournalOpenError as JournalError;
use netram_journal::settings::SettingsError;

use crate::backing_directory::BackingDirectoryError;
use crate::stamp::StaleJournal;
use crate::users::MountUser;

/// Why a directory could not be mounted or given back. Acknowledged writes are safe in the journal and at its
/// lenders.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The directory does not exist or cannot be read.
    #[error("{}: {source}", .dir.display())]
    NoDirectory {
        /// Path as given.
        dir: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The directory is mounted already.
    #[error("{} is mounted already", .dir.display())]
    Mounted {
        /// Its path.
        dir: PathBuf,
    },
    /// The directory is not mounted by netram.
    #[error("{} is not mounted by netram", .dir.display())]
    NotMounted {
        /// Its path.
        dir: PathBuf,
    },
    /// A process has a file open in the directory.
    #[error("{} is in use: {user}; stop that process first", .dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
        /// One of the processes, with the file.
        user: MountUser,
    },
    /// The journal is a copy, or an older one that was put back.
    #[error("{}: {older}", .dir.display())]
    StaleJournal {
        /// The directory.
        dir: PathBuf,
        /// State recorded with the directory, and state of the journal.
        older: Box<StaleJournal>,
    },
    /// The journal lies inside the directory, or the directory inside the journal.
    #[error("the journal {} and the directory {} must not be inside each other", .journal.display(), .dir.display())]
    Nested {
        /// The directory.
        dir: PathBuf,
        /// The journal.
        journal: PathBuf,
    },
    /// The directory belongs to another user, or to a group that this user is not in.
    #[error("{} belongs to user {user} and group {group}. Its files are moved into a directory of the same owner and group, which you cannot make: let root mount it, or give it a group that you are in (chgrp)", .dir.display())]
    Foreign {
        /// The directory.
        dir: PathBuf,
        /// Number of its owner.
        user: u32,
        /// Number of its group.
        group: u32,
    },
    /// Root mounts or recovers with its own rights, and the journal is another user's.
    #[error("the journal {} belongs to user {user}, and root carries out no records of a user's: run the command as that user, or give the journal to root (chown -R root)", .journal.display())]
    ForeignJournal {
        /// The journal.
        journal: PathBuf,
        /// Number of its owner.
        user: u32,
    },
    /// Root's journal lies where another user can replace it.
    #[error(transparent)]
    Exposed(#[from] netram_process::rights::RightsError),
    /// The journal could not be created.
    #[error(transparent)]
    Create(#[from] netram_journal::JournalCreateError),
    /// The settings file is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The directory could not be taken or given back.
    #[error(transparent)]
    Backing(#[from] BackingDirectoryError),
    /// The journal could not be replayed into the directory.
    #[error("{}: {source}", .dir.display())]
    Open {
        /// The directory.
        dir: PathBuf,
        /// Reason that recovery gave.
        source: DirectoryOpenError,
    },
    /// The kernel refused the mount.
    #[error("mounting {}: {source}; this needs root or `fusermount3` (Debian package fuse3), and FUSE in the kernel (`modprobe fuse`)", .dir.display())]
    Fuse {
        /// The directory.
        dir: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Another server cannot continue the mount.
    #[error("{}: another server cannot continue the mount: {reason}. Unmount it (umount -l) and run `netram mount recover` on it", .dir.display())]
    TakeOver {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The directory could not be unmounted.
    #[error("unmounting {}: {source}", .dir.display())]
    Unmount {
        /// The directory.
        dir: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The last changes could not be written to the disk. The journal keeps them, and `netram mount recover`
    /// tries again.
    #[error("{}: the last changes could not be written to the disk ({source}); the journal keeps them: repair the disk and run `netram mount recover`", .dir.display())]
    Close {
        /// The directory.
        dir: PathBuf,
        /// Reason that the checkpoint gave.
        source: CheckpointError,
    },
}
