//! Internal to netram: programs use the crate `netram`.
//!
//! Engine of a block volume: every write is a record of a journal, and it completes once other machines' RAM
//! holds that record. The image on the local disk follows in stages.
//!
//! ```no_run
//! # use netram_block::{Disk, DiskFiles, DiskOptions, SparseFile};
//! # use netram_proto::{id::JournalId, port::RecordLog};
//! # fn example<L: RecordLog + Send + Sync, F: SparseFile + Send + Sync>(log: L, files: DiskFiles<F>) -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Disk::open(log, files, DiskOptions::new(JournalId(1)))?;
//! let pending = disk.write(4096, &[7; 4096])?; // logged in order
//! disk.wait(pending)?; // durable by the commit rule
//! # Ok(())
//! # }
//! ```
//!
//! | part | purpose |
//! |---|---|
//! | [`BlockDevice`] | interface for front ends |
//! | [`Disk`] | an open volume: writing, flushing, growing |
//! | [`DiskFiles`], [`DiskOptions`] | creating and opening a volume |
//! | `read` | reading, and reporting holes |
//! | `stage`, `stage_queue` | writes merged by sector; when a stage ends and when writers wait |
//! | `apply` | applying stages to the image |
//! | `recover` | applying the journal to the image after a crash |
//! | `trim`, `retained`, `dirty` | which journal is kept for a data lender, and which blocks it must be sent once that journal is gone |
//! | `resync`, `follow` | the writer's side and the data lender's side of a copy |
//! | [`BlockFetch`], `repair`, [`VolumeRestore`] | repairing and restoring blocks from another copy |
//! | `image`, `superblock`, [`record`] | file and record formats |
//! | [`limit`] | all bounds |
//!
//! This crate knows the log only as `netram_proto::port::RecordLog` and files only as `StorageFile`. Sockets,
//! lenders and the log's own recovery belong to its client. Formats and crash arguments:
//! `docs/design/volumes.md`.
#![forbid(unsafe_code)]

mod apply;
mod device;
mod dirty;
mod disk;
mod error;
mod fetch;
mod follow;
#[doc(hidden)]
pub mod fuzzed;
mod image;
pub mod limit;
mod open;
mod read;
pub mod record;
mod recover;
mod repair;
mod restore;
mod resync;
mod retained;
mod stage;
mod stage_queue;
mod stats;
mod superblock;
mod sync;
mod trim;

pub use apply::ApplyProgress;
pub use device::{BLOCK_BYTES, BlockDevice, DeviceGeometry, PendingWrite, SECTOR_BYTES, SectorSpan};
pub use disk::{Disk, DiskStatus};
pub use error::{
    ApplyError, DeviceError, DiskGrowError, DiskOpenError, DiskResyncError, FileKind, FollowError,
};
pub use fetch::{BlockFetch, FetchError, NoCopy};
pub use image::{SparseFile, is_of_a_volume};
pub use open::{DiskFiles, DiskOptions, FlushPolicy, create};
pub use recover::DiskRecovery;
pub use repair::{CopyStep, ScrubStep};
pub use restore::VolumeRestore;
pub use resync::{DIGEST_BYTES, ReplicaStatus, ResyncBegun, ResyncRun, digest};
pub use stage_queue::{StagePolicy, StagesStatus};
pub use stats::Statistics;
pub use superblock::{VolumeId, VolumeSuperblock};
pub use sync::ApplierTask;
