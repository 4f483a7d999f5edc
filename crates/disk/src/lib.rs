//! A block device's volume: every write is a record of a journal, held in other machines' RAM when it completes; the
//! image on the disk follows in stages.
//!
//! | module | does |
//! |---|---|
//! | [`Device`] | what front ends see |
//! | [`limit`] | every bound |
//!
//! It knows the log only as `netram_proto::port::Log` and files as `File`; sockets, lenders and the log's own recovery
//! are the client's affair. Formats and crash arguments: `docs/disk.md`.
#![forbid(unsafe_code)]

mod device;
mod error;
pub mod limit;

pub use device::{BLOCK_BYTES, Device, Geometry, Pending, SECTOR_BYTES, Span};
pub use error::DeviceError;
