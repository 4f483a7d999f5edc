//! Internal to netram: programs use the crate `netram`.
//!
//! A directory whose changes are recorded in a journal, held in other machines' RAM, before they reach the
//! disk.
//!
//! Every change is made to the backing files, which need not be synced for it. A sync waits only until the
//! journal's record of the change is held. From time to time a *checkpoint* syncs the disk and trims the
//! journal. After a crash, [`JournaledDirectory::open`] replays the records since the last checkpoint.
//!
//! | module | does |
//! |---|---|
//! | [`JournaledDirectory`] | an open directory: changes, syncs, checkpoints |
//! | `recover` | replays the journal into the disk after a crash, or its names after the end of a server |
//! | [`ExecutedRequests`] | requests that are sent again, and whether they were executed |
//! | [`PeriodicTask`] | schedule of a task that is repeated, and retried after errors |
//! | [`NameTable`] | all inodes and their names |
//! | [`DirectoryChange`], [`Catalog`] | the formats |
//! | [`FileTree`], [`CatalogStore`] | interfaces to the disk |
//! | [`limit`] | every bound |
//! | `model` | with the feature `model`, for tests and the simulator: a disk in memory that fails on demand |
//!
//! The journal is used only through `netram_proto::port::RecordLog`. Formats and crash arguments:
//! `docs/design/directories.md`.
#![forbid(unsafe_code)]

mod catalog;
mod change;
mod directory;
mod dirty_ranges;
mod error;
mod executed;
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
    AttributeChange, DecodedRecord, DirectoryChange, DirectoryDecodeError, DirectoryEntry, FallocateMode,
    FileOwner, FileTime, InodeId, InodeKind, InodeSpec, KIND_CHANGE, KIND_WRITE,
};
pub use directory::{DirectoryOptions, DirectoryStatus, JournaledDirectory, OpenFile};
pub use dirty_ranges::DirtyRanges;
pub use error::{ChangeError, CheckpointError, DirectoryOpenError};
pub use executed::{ExecutedRequests, RequestId};
pub use file_tree::{CatalogStore, FileTree, ListedEntry};
pub use name_table::{InodeIdentity, NameError, NameTable};
pub use periodic_task::{PeriodicTask, TaskNotice, TaskOutcome};
pub use recover::DirectoryRecovery;
