//! Why a database is not taken, opened or given back, with the remedy.

use std::io;
use std::path::PathBuf;

use netram_journal::CreateError;

/// Why a database is not taken, or not given back. Nothing is lost by trying again.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// A path that names no file.
    #[error("{}: name the database's file", .path.display())]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// It is held already.
    #[error("{} is held already; `netram sqlite status` says how it stands", .path.display())]
    Held {
        /// The database.
        path: PathBuf,
    },
    /// It is not held.
    #[error(
        "netram does not hold {0}: `netram sqlite create {0}` makes it do so. A database that netram is not to hold, also one that is \
         attached or that `vacuum into` makes, is opened by SQLite's own VFS: 'file:{0}?vfs=unix'",
        .path.display()
    )]
    Free {
        /// The database.
        path: PathBuf,
    },
    /// Another user's.
    #[error(
        "{} belongs to user {owner}, and others may not look into it: run this as that user, or give them permission for the folder and all in it",
        .folder.display()
    )]
    Denied {
        /// The folder that netram keeps the database in.
        folder: PathBuf,
        /// Number of the user to whom it belongs.
        owner: u32,
    },
    /// It was not closed.
    #[error(
        "{} has what is not in the database yet; have SQLite bring it there: `sqlite3 {} 'pragma wal_checkpoint(truncate)'`",
        .left.display(), .path.display()
    )]
    Unfinished {
        /// The database.
        path: PathBuf,
        /// What a program left that was killed, or has it open.
        left: PathBuf,
    },
    /// It is none.
    #[error("{} is no SQLite database", .path.display())]
    Other {
        /// The file.
        path: PathBuf,
    },
    /// A folder, a link, a device.
    #[error("{} is {what}; name the file of a database, or a new one", .path.display())]
    NoFile {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// There is one, and another one in the folder.
    #[error("{} is there, and so is {}, which netram took before; move one of them away", .path.display(), .inside.display())]
    Both {
        /// What is in its place.
        path: PathBuf,
        /// What was taken from there.
        inside: PathBuf,
    },
    /// A journal could not be made.
    #[error(transparent)]
    Journal(#[from] CreateError),
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was to be made, moved or read.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}
