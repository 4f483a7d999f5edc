//! OO7 on today's storage managers.
//!
//! TR-190 put remote memory under EXODUS and called it REX. EXODUS is no longer available; programs of today
//! use SQLite and Berkeley DB. This crate runs the same benchmark over both, unmodified, so that a
//! measurement compares the places of their logs: a disk, or remote memory.
//!
//! | module | does |
//! |---|---|
//! | [`sqlite`] | a database in SQLite: tables, indexes, statements |
//! | [`berkeley`] | a database in Berkeley DB: records of objects in btrees |
//!
//! All unsafe code is in `sys`: the functions of Berkeley DB, which is loaded at run time where it is
//! installed, because this crate is not linked to it. Schemas and results: `docs/results/oo7.md`.

pub mod berkeley;
pub mod sqlite;
mod sys;

use netram_oo7::{Oo7Error, Oo7Store};

pub use berkeley::BerkeleyStore;
pub use sqlite::{SqliteJournalMode, SqliteStore, SqliteVfs};
pub use sys::{BerkeleyError, BerkeleyShim, ShimLoadError, register_vfs};

/// A storage manager: a store that keeps a log and can make a checkpoint.
pub trait StorageManager: Oo7Store {
    /// Writes a row in the open transaction, so that its commit is logged even if it only reads.
    ///
    /// EXODUS logs each transaction; these two do not log those that only read.
    ///
    /// # Errors
    ///
    /// Fails if the storage manager does.
    fn insert_note(open: &mut Self::Open<'_>) -> Result<(), Oo7Error>;

    /// Number of committed notes.
    ///
    /// # Errors
    ///
    /// Fails if the storage manager does.
    fn note_count(open: &mut Self::Open<'_>) -> Result<u32, Oo7Error>;

    /// Applies everything in the log to the database's files.
    ///
    /// # Errors
    ///
    /// Fails if the storage manager does.
    fn checkpoint(&self) -> Result<(), Oo7Error>;
}
