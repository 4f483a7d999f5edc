//! Internal to netram: programs use the crate `netram`.
//!
//! Processes that share the files of one database, and journals that make their syncs durable before the disk
//! does.
//!
//! This crate only decides; the disk, the other processes and the journals are traits. `crates/files/sqlite`
//! drives it with real files, locks and lenders, and so does the simulator (`docs/design/simulator.md`).
//!
//! | module | does |
//! |---|---|
//! | [`DatabaseWriter`] | one process's part: records its writes at a sync, runs checkpoints |
//! | [`JournalSlots`] | the journals of a database, one for each process that commits |
//! | [`SharedIndex`] | counters by which the processes know each other's unrecorded writes |
//! | [`recover()`] | replays the journals into the files after the machine has crashed |
//! | [`DatabaseChange`] | the record format |
//! | [`BackingFiles`] | interface to the disk |
//!
//! `docs/design/sqlite.md` argues why nothing is lost.
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
