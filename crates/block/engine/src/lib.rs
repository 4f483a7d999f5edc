//! A block device's volume: every write is a record of a journal, held in other machines' RAM when it completes; the
//! image on the disk follows in stages.
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
//! | [`Device`] | what front ends see |
//! | [`Disk`] | an open volume: writing, flushing, growing |
//! | [`Files`], [`Options`] | how it is made and opened |
//! | `read` | reading, and where the holes are |
//! | `stage`, `stages` | writes merged by sector; when a stage ends, when writers wait |
//! | `apply` | a stage's way into the image |
//! | `recover` | the journal's way into the image, after a crash |
//! | `trim`, `held`, `dirty` | what of the journal is kept for a data lender, and what it must be sent instead |
//! | `resync`, `follow` | the writer's side of a data lender's copy, and the data lender's |
//! | [`Fetch`], `mend`, [`Restoring`] | blocks from another copy |
//! | `image`, `superblock`, [`record`] | the formats |
//! | [`limit`] | every bound |
//!
//! It knows the log only as `netram_proto::port::Log` and files as `File`; sockets, lenders and the log's own recovery
//! are the client's affair. Formats and crash arguments: `docs/disk.md`.
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
mod held;
mod image;
pub mod limit;
mod mend;
mod open;
mod read;
pub mod record;
mod recover;
mod restore;
mod resync;
mod stage;
mod stages;
mod stats;
mod superblock;
mod sync;
mod trim;

pub use apply::Progress;
pub use device::{BLOCK_BYTES, Device, Geometry, Pending, SECTOR_BYTES, Span};
pub use disk::{Disk, DiskStatus};
pub use error::{ApplyError, DeviceError, FileKind, FollowError, GrowError, OpenError, ResyncError};
pub use fetch::{Alone, Fetch, FetchError};
pub use image::{Sparse, is_of_a_volume};
pub use mend::{Copied, Scrubbed};
pub use open::{Files, Flush, Options, create};
pub use recover::Recovered;
pub use restore::Restoring;
pub use resync::{DIGEST_BYTES, ReplicaStatus, ResyncBegun, ResyncRun, digest};
pub use stages::{StagePolicy, StagesStatus};
pub use stats::Statistics;
pub use superblock::{Superblock, VolumeId};
pub use sync::Work;
