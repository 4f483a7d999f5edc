//! A block device's volume: every write is a record of a journal, held in other machines' RAM when it
//! completes; the image on the disk follows in stages.
//!
//! ```no_run
//! # use netram_block::{Device, Disk, Files, OpenError, Options, Sparse};
//! # use netram_proto::{id::JournalId, port::Log};
//! # fn example<L: Log + Send + Sync, F: Sparse + Send + Sync>(log: L, files: Files<F>) -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Disk::open(log, files, Options::new(JournalId(1)))?;
//! let pending = disk.write(4096, &[7; 4096])?; // in its place
//! disk.wait(pending)?; // safe
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`BlockDevice`] | what front ends see |
//! | [`Disk`] | an open volume: writing, flushing, growing |
//! | [`DiskFiles`], [`DiskOptions`] | how it is made and opened |
//! | `read` | reading, and where the holes are |
//! | `stage`, `stage_queue` | writes merged by sector; when a stage ends, when writers wait |
//! | `apply` | a stage's way into the image |
//! | `recover` | the journal's way into the image, after a crash |
//! | `trim`, `retained`, `dirty` | what of the journal is kept for a data lender, and what it must be sent instead |
//! | `resync`, `follow` | the writer's side of a data lender's copy, and the data lender's |
//! | [`BlockFetch`], `repair`, [`VolumeRestore`] | blocks from another copy |
//! | `image`, `superblock`, [`record`] | the formats |
//! | [`limit`] | every bound |
//!
//! It knows the log only as `netram_proto::port::RecordLog` and files as `File`; sockets, lenders and the
//! log's own recovery are the client's affair. Formats and crash arguments: `docs/disk.md`.
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
