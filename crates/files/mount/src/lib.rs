//! A directory on this machine whose synced files are held in other machines' RAM: for any program's log.
//!
//! [`Mount::begin`] takes a directory, does again what its journal has of it, and mounts a FUSE file system
//! in its place. Programs find their files there as before. A sync waits for the lenders, and not for the
//! disk, to which everything goes in the background.
//!
//! | module | does |
//! |---|---|
//! | `mount` | taking, mounting, ending, recovering |
//! | `maintenance` | the threads that record, and that make checkpoints |
//! | `descriptors` | how many files may be open |
//! | `fuse` | what the kernel asks, answered by `netram_files::JournaledDirectory` |
//! | `backing_fs` | the disk beneath |
//! | `backing_directory` | a directory that is taken: where its files are meanwhile |
//! | `catalog_file` | the catalog's file |
//! | `stamp` | how far a journal's records are in the files: an older one is told by it |
//! | [`users`] | who has something open there |
//!
//! What programs may expect: `docs/mount.md`.
#![forbid(unsafe_code)]

mod backing_directory;
mod backing_fs;
mod catalog_file;
mod descriptors;
mod error;
mod fuse;
mod maintenance;
mod mount;
mod stamp;
mod users;

pub use backing_directory::BackingDirectoryError;
pub use error::MountError;
pub use mount::{
    Mount, MountOptions, MountReport, check, create_journal, is_given_back_within, is_mounted, recover,
    unmount,
};
pub use netram_files::DirectoryRecovery;
pub use stamp::StaleJournal;
pub use users::{MountUser, users};
