//! SQLite databases whose commits are held in other machines' RAM.
//!
//! SQLite does its files' reading, writing and locking through a *VFS*. This one does with them what SQLite's
//! own does, and when a file is synced it records what was written in a journal, which lenders hold before
//! the disk has it. No change to SQLite: any program loads an extension (`crates/files/sqlite-extension`), or
//! a Rust program calls [`register`]. Then `file:app.db?vfs=netram` is such a database, once `netram sqlite
//! create app.db` has taken it.
//!
//! | module | does |
//! |---|---|
//! | [`vfs`] | what SQLite calls |
//! | [`Database`] | a database that this process has open: its locks, its journal, the thread that looks after both |
//! | [`DatabasePaths`] | where a database is while netram holds it |
//! | `database_disk` | the files of one database, and what its processes share on the disk |
//!
//! `netram-sqlite-machine` decides what is recorded, settled and done again, without files, sockets and
//! threads; the simulator runs the same.
//!
//! `docs/databases/sqlite.md` says how it is used, `docs/sqlite.md` how it works and why nothing is lost.
//!
//! Unsafe is what is in [`vfs`] alone.

mod database;
mod database_disk;
mod manage;
mod paths;
pub mod vfs;

pub use database::{Database, DatabaseOpenError, why_lenders_wait};
pub use manage::{DatabaseStatus, database_status, recover_database, release};
pub use netram_sqlite_machine::{DatabaseRecovery, FileRole};
pub use paths::{DatabasePaths, DatabaseStateError, JOURNAL_SLOTS_MAX};
pub use vfs::{RegisterError, SqliteFunctions, VFS_NAME, register};
