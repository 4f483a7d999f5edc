//! Internal to netram: programs use the crate `netram`.
//!
//! A directory whose synced files are held in other machines' RAM, for any program's log.
//!
//! [`Mount::begin`] takes a directory, replays its journal and mounts a FUSE file system in its place.
//! Programs find their files at the same paths. A sync waits for the lenders and not for the disk, which is
//! written in the background.
//!
//! | module | does |
//! |---|---|
//! | `mount` | takes, mounts and recovers a directory |
//! | `mount_point` | the kernel's mount table, and unmounting |
//! | `maintenance` | threads that record writes and make checkpoints |
//! | `descriptors` | bound on open files |
//! | `fuse` | the kernel's requests, answered from `netram_files::JournaledDirectory` |
//! | `backing_fs` | the backing file system |
//! | `identity` | by what an inode is known again |
//! | `backing_directory` | a taken directory and the place of its files |
//! | [`BackingHandles`] | descriptors of the directory beneath the mount, for later servers |
//! | `open_directory` | names below an open directory, resolved without links |
//! | `private_directory` | the directory in a taken one that only its mounter can use |
//! | `replay_rights` | owners and permissions that a replayed record may give |
//! | `place` | puts the mount over the open directory |
//! | `catalog_file` | the catalog's file |
//! | `stamp` | the journal's progress recorded beside the files, by which an older journal is refused |
//! | [`metrics`] | times of requests and checkpoints, for Prometheus |
//! | [`users()`] | processes that have files open in a directory |
//!
//! The guarantees for programs are in `docs/design/directories.md`.
#![forbid(unsafe_code)]

mod backing_directory;
mod backing_fs;
mod backing_handles;
mod catalog_file;
mod descriptors;
mod error;
mod fuse;
mod identity;
mod maintenance;
pub mod metrics;
mod mount;
mod mount_point;
mod open_directory;
mod place;
mod private_directory;
mod replay_rights;
mod stamp;
mod users;

pub use backing_directory::BackingDirectoryError;
pub use backing_handles::BackingHandles;
pub use error::MountError;
pub use mount::{
    Mount, MountOptions, MountReport, MountWatch, check, create_journal, is_given_back_within, journal_of,
    owner_of_mount, recover,
};
pub use mount_point::{is_mounted, unmount};
pub use netram_files::{CheckpointError, DirectoryRecovery};
pub use stamp::StaleJournal;
pub use users::{MountUser, users};
