//! A directory of files whose changes are in a journal, held in other machines' RAM, before they are on the
//! disk.
//!
//! Whatever is done to its files is done to those of the disk beneath, which need not be synced for it: a
//! record of it is in the journal, and whoever syncs a file waits for that. From time to time a *checkpoint*
//! syncs the disk, and gives the journal's records up. After a crash the records since the last checkpoint
//! are done again ([`JournaledDirectory::open`]).
//!
//! | module | does |
//! |---|---|
//! | [`JournaledDirectory`] | an open directory: changes, syncs, checkpoints |
//! | `recover` | the journal's way into the disk, after a crash |
//! | [`PeriodicTask`] | what is owed again and again, and that no refusal ends it |
//! | [`NameTable`] | which nodes there are, and what they are called |
//! | [`DirectoryChange`], [`Catalog`] | the formats |
//! | [`FileTree`], [`CatalogStore`] | what is needed of the disk |
//! | [`limit`] | every bound |
//! | `model` | with the feature of that name, for tests and the simulator: a disk in memory that fails when it is told to |
//!
//! It knows the journal only as `netram_proto::port::RecordLog`. Formats and crash arguments:
//! `docs/mount.md`.
#![forbid(unsafe_code)]

mod catalog;
mod change;
mod directory;
mod dirty_ranges;
mod error;
mod file_tree;
#[doc(hidden)]
pub mod fuzzed;
pub mod limit;
#[cfg(feature = "model")]
pub mod model;
mod name_table;
mod path_op;
mod periodic_task;
mod recover;

pub use catalog::{Catalog, CatalogError};
pub use change::{
    AttributeChange, DirectoryChange, DirectoryDecodeError, DirectoryEntry, FallocateMode, FileOwner,
    FileTime, InodeId, InodeKind, InodeSpec, KIND_CHANGE, KIND_WRITE,
};
pub use directory::{DirectoryOptions, DirectoryStatus, JournaledDirectory, OpenFile};
pub use dirty_ranges::DirtyRanges;
pub use error::{ChangeError, CheckpointError, DirectoryOpenError};
pub use file_tree::{CatalogStore, FileTree, ListedEntry};
pub use name_table::{InodeIdentity, NameError, NameTable};
pub use periodic_task::{PeriodicTask, TaskNotice, TaskOutcome};
pub use recover::DirectoryRecovery;
