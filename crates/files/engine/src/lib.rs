//! A folder of files whose changes are in a journal, held in other machines' RAM, before they are on the disk.
//!
//! Whatever is done to its files is done to those of the disk beneath, which need not be synced for it: a record of it is in the journal, and whoever
//! syncs a file waits for that. From time to time a *checkpoint* syncs the disk, and gives the journal's records up. After a crash the records since
//! the last checkpoint are done again ([`Folder::open`]).
//!
//! | module | does |
//! |---|---|
//! | [`Folder`] | an open folder: changes, syncs, checkpoints |
//! | `recover` | the journal's way into the disk, after a crash |
//! | [`Duty`] | what is owed again and again, and that no refusal ends it |
//! | [`Names`] | which nodes there are, and what they are called |
//! | [`Change`], [`Catalog`] | the formats |
//! | [`Tree`], [`Keep`] | what is needed of the disk |
//! | [`limit`] | every bound |
//! | `model` | with the feature of that name, for tests and the simulator: a disk in memory that fails when it is told to |
//!
//! It knows the journal only as `netram_proto::port::Log`. Formats and crash arguments: `docs/mount.md`.
#![forbid(unsafe_code)]

mod catalog;
mod change;
mod deed;
mod duty;
mod error;
mod folder;
#[doc(hidden)]
pub mod fuzzed;
pub mod limit;
#[cfg(feature = "model")]
pub mod model;
mod names;
mod pending;
mod recover;
mod tree;

pub use catalog::{Catalog, CatalogError};
pub use change::{
    Allocation, Attributes, Change, DecodeError, KIND_CHANGE, KIND_WRITE, Made, Moment, Node, NodeKind,
    Owner, Place,
};
pub use duty::{Duty, Notice, Outcome};
pub use error::{ChangeError, CheckpointError, OpenError};
pub use folder::{File, Folder, FolderStatus, Options};
pub use names::{Identity, NameError, Names};
pub use pending::Pending;
pub use recover::Recovered;
pub use tree::{Found, Keep, Tree};
