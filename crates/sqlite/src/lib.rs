//! SQLite databases whose commits are held in other machines' RAM.
//!
//! SQLite does its files' reading, writing and locking through a *VFS*. This one does with them what SQLite's own does, and when a file is synced it records
//! what was written in a journal, which lenders hold before the disk has it. No change to SQLite: any program loads an extension (`crates/sqlext`), or a
//! Rust program calls [`register`]. Then `file:app.db?vfs=netram` is such a database, once `netram sqlite create app.db` has taken it.
//!
//! | module | does |
//! |---|---|
//! | [`vfs`] | what SQLite calls |
//! | [`Database`] | a database that this process has open: its locks, its journal, the thread that looks after both |
//! | [`Party`] | one process of those that have a database open: what it writes is recorded when it is synced |
//! | [`Ledger`] | what those processes know of each other |
//! | [`recover()`] | the journals' way into the files, after the machine has crashed |
//! | [`Place`] | where a database is while netram holds it |
//! | [`Change`] | the format |
//! | [`Beneath`] | what is needed of the disk |
//!
//! `docs/databases/sqlite.md` says how it is used, `docs/sqlite.md` how it works and why nothing is lost.
//!
//! Unsafe is what is in [`vfs`] alone.

mod beneath;
pub mod change;
mod database;
mod disk;
mod ledger;
mod party;
mod place;
mod recover;
pub mod vfs;

pub use beneath::Beneath;
pub use change::{Change, DecodeError, Deed, Role};
pub use database::{Database, Look, OpenError, look, recover_database, release, why_lenders_wait};
pub use ledger::{Ledger, SLOTS, WORDS, Words};
pub use party::{Contents, Counts, Party, PartyError, Synced};
pub use place::{Place, PlaceError, SEATS_MAX};
pub use recover::{RecoverError, Recovered, recover};
pub use vfs::{NAME, RegisterError, Sqlite, register};
