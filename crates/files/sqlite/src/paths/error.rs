//! Why a database cannot be taken, opened or given back, with the remedy.

use std::io;
use std::path::PathBuf;

use netram_journal::JournalCreateError;

/// Why a database cannot be taken or given back. Nothing is lost by trying again.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseStateError {
    /// The path has no file name.
    #[error("{}: give the path of the database file", .path.display())]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// The database is managed by netram already.
    #[error("netram manages {} already; `netram sqlite status` shows its state", .path.display())]
    AlreadyManaged {
        /// The database.
        path: PathBuf,
    },
    /// The database is not managed by netram.
    #[error(
        "netram does not manage {0}. To change that, run `netram sqlite create {0}`. Open other databases, also one that is \
         attached or made by `vacuum into`, with SQLite's own VFS: 'file:{0}?vfs=unix'",
        .path.display()
    )]
    NotManaged {
        /// The database.
        path: PathBuf,
    },
    /// The directory belongs to another user and this one may not read it.
    #[error(
        "{} belongs to user {owner} and is closed to others: run this as that user, or grant access to the directory and everything in it",
        .directory.display()
    )]
    Denied {
        /// Directory with the database's files.
        directory: PathBuf,
        /// User id of its owner.
        owner: u32,
    },
    /// A log beside the database has changes that the database file lacks.
    #[error(
        "{} has changes that are not in the database file yet; move them there with `sqlite3 {} 'pragma wal_checkpoint(truncate)'`",
        .left.display(), .path.display()
    )]
    NotCheckpointed {
        /// The database.
        path: PathBuf,
        /// The log, left by a killed program or in use.
        left: PathBuf,
    },
    /// The file is not a SQLite database.
    #[error("{} is not a SQLite database", .path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The path is a directory, a symbolic link or a device.
    #[error("{} is {what}; give the path of a database file or of a new one", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// Type of the file, with article.
        what: &'static str,
    },
    /// A database exists both at the path and in its netram directory.
    #[error("there are two databases: {}, and {}, which netram took earlier; move one of them away", .path.display(), .inside.display())]
    TwoDatabases {
        /// Database at the path.
        path: PathBuf,
        /// Database in the netram directory.
        inside: PathBuf,
    },
    /// A journal could not be created.
    #[error(transparent)]
    Journal(#[from] JournalCreateError),
    /// A system call failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File that was being made, moved or read.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
}
