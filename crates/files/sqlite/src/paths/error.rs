//! Why a database is not taken, opened or given back, with the remedy.

use std::io;
use std::path::PathBuf;

use netram_journal::JournalCreateError;

/// Why a database is not taken, or not given back. Nothing is lost by trying again.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseStateError {
    /// A path that names no file.
    #[error("{}: name the database's file", .path.display())]
    NoFileName {
        /// The path.
        path: PathBuf,
    },
    /// It is held already.
    #[error("{} is held already; `netram sqlite status` says how it stands", .path.display())]
    AlreadyManaged {
        /// The database.
        path: PathBuf,
    },
    /// It is not held.
    #[error(
        "netram does not hold {0}: `netram sqlite create {0}` makes it do so. A database that netram is not to hold, also one that is \
         attached or that `vacuum into` makes, is opened by SQLite's own VFS: 'file:{0}?vfs=unix'",
        .path.display()
    )]
    NotManaged {
        /// The database.
        path: PathBuf,
    },
    /// Another user's.
    #[error(
        "{} belongs to user {owner}, and others may not look into it: run this as that user, or give them permission for the directory and all in it",
        .directory.display()
    )]
    Denied {
        /// The directory that netram keeps the database in.
        directory: PathBuf,
        /// Number of the user to whom it belongs.
        owner: u32,
    },
    /// It was not closed.
    #[error(
        "{} has what is not in the database yet; have SQLite bring it there: `sqlite3 {} 'pragma wal_checkpoint(truncate)'`",
        .left.display(), .path.display()
    )]
    NotCheckpointed {
        /// The database.
        path: PathBuf,
        /// What a program left that was killed, or has it open.
        left: PathBuf,
    },
    /// It is none.
    #[error("{} is no SQLite database", .path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// A directory, a link, a device.
    #[error("{} is {what}; name the file of a database, or a new one", .path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// There is one, and another one in the directory.
    #[error("{} is there, and so is {}, which netram took before; move one of them away", .path.display(), .inside.display())]
    TwoDatabases {
        /// What is in its place.
        path: PathBuf,
        /// What was taken from there.
        inside: PathBuf,
    },
    /// A journal could not be made.
    #[error(transparent)]
    Journal(#[from] JournalCreateError),
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was to be made, moved or read.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}
