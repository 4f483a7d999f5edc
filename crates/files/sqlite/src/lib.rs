//! Internal to netram: programs use the crate `netram`.
//!
//! SQLite databases whose commits are held in other machines' RAM.
//!
//! SQLite reads, writes and locks its files through a *VFS*. This VFS forwards every call to SQLite's own. At
//! a sync it also records the writes in a journal, which lenders hold before the disk does.
//!
//! SQLite itself is unchanged: a program loads an extension (`crates/files/sqlite-extension`), or a Rust
//! program calls [`register`]. A database is taken with `netram sqlite create app.db` and opened as
//! `file:app.db?vfs=netram`.
//!
//! | module | does |
//! |---|---|
//! | [`vfs`] | functions that SQLite calls |
//! | [`Database`] | a database that this process has open: its lock, its journal, its maintenance thread |
//! | [`DatabasePaths`] | places of a managed database's files |
//! | [`metrics`] | times of syncs and checkpoints, for Prometheus |
//! | `manage` | status, recovery and release of a database that is not open here |
//! | `database_disk` | the files of one database, and the state that its processes share on the disk |
//!
//! `netram-sqlite-machine` decides what to record, when to run a checkpoint and what to replay, without
//! files, sockets or threads; the simulator runs the same code.
//!
//! Usage is in `docs/guide/databases/sqlite.md`, design and crash argument in `docs/design/sqlite.md`.
//!
//! Unsafe code is confined to [`vfs`].

mod database;
mod database_disk;
mod manage;
pub mod metrics;
mod paths;
pub mod vfs;

pub use database::{Database, DatabaseOpenError, why_lenders_wait};
pub use manage::{DatabaseStatus, database_status, recover_database, release};
pub use netram_sqlite_machine::{DatabaseRecovery, FileRole};
pub use paths::{DatabasePaths, DatabaseStateError, JOURNAL_SLOTS_MAX};
pub use vfs::{RegisterError, SqliteFunctions, VFS_NAME, register};
