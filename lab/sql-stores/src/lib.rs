//! OO7 on the storage managers of today.
//!
//! TR-190 put remote memory beneath EXODUS, and called it REX. Nobody has EXODUS any more; programs have
//! SQLite and Berkeley DB inside of them. This is the same benchmark over both, unchanged, so that what is
//! measured is where their logs are: on a disk, or on memory elsewhere.
//!
//! | module | does |
//! |---|---|
//! | [`sqlite`] | a database in SQLite: tables, indexes, statements |
//! | [`berkeley`] | a database in Berkeley DB: records of objects in btrees |
//!
//! Unsafe is what is in `sys` alone: the functions of Berkeley DB, which is loaded where it is installed, as
//! this crate is not linked to it. Schemas and results: `docs/oo7.md`.

pub mod berkeley;
pub mod sqlite;
mod sys;

use netram_oo7::{Oo7Error, Oo7Store};

pub use berkeley::BerkeleyStore;
pub use sqlite::{SqliteJournalMode, SqliteStore, SqliteVfs};
pub use sys::{BerkeleyError, BerkeleyShim, ShimLoadError, register_vfs};

/// A storage manager: a store that keeps a log, and can be told to be done with it.
pub trait StorageManager: Oo7Store {
    /// Has the open transaction say in a row of its own that it was: then its commit is logged, whatever else
    /// it does.
    ///
    /// EXODUS logs each transaction. These two do not log those that only read.
    fn insert_note(open: &mut Self::Open<'_>) -> Result<(), Oo7Error>;

    /// How many transactions have said so.
    fn note_count(open: &mut Self::Open<'_>) -> Result<u32, Oo7Error>;

    /// Brings everything from the log into the database's files.
    fn checkpoint(&self) -> Result<(), Oo7Error>;
}
