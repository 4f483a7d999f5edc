//! Processes that share the files of one database, and whose syncs a journal makes durable before the disk
//! does.
//!
//! All of it decides and nothing acts: the disk, the other processes and the journals are traits.
//! `crates/files/sqlite` is the driver, with real files, locks and lenders; the simulator is another one
//! (`docs/simulator.md`).
//!
//! | module | does |
//! |---|---|
//! | [`DatabaseWriter`] | one process of those that have a database open: what it writes is recorded when it is synced |
//! | [`JournalSlots`] | the journals of a database, of which a process takes a free one |
//! | [`SharedIndex`] | what those processes know of each other |
//! | [`recover()`] | the journals' way into the files, after the machine has crashed |
//! | [`DatabaseChange`] | the format |
//! | [`BackingFiles`] | what is needed of the disk |
//!
//! `docs/sqlite.md` says why nothing is lost.
#![forbid(unsafe_code)]

mod backing_files;
pub mod change;
mod database_writer;
mod journal_merge;
mod journal_slots;
pub mod limit;
mod recover;
mod shared_index;

pub use backing_files::BackingFiles;
pub use change::{DatabaseChange, DatabaseDecodeError, FileOp, FileRole};
pub use database_writer::{DatabaseWriter, DatabaseWriterError, FileContents, SyncMedium, WriterCounts};
pub use journal_slots::{JournalSlotError, JournalSlots};
pub use recover::{DatabaseRecoverError, DatabaseRecovery, recover};
pub use shared_index::{INDEX_WORDS, PROCESS_SLOTS, SharedIndex, SharedWords};
