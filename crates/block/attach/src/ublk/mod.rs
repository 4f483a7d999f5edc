//! The kernel's ublk: a block device whose requests a process takes from it, and answers, by io_uring.
//!
//! ```text
//!  ext4 ── /dev/ublkb0 ── driver ── /dev/ublkc0 ── server process: Device ── lenders, disk
//! ```
//!
//! The device belongs to the driver: it has neither file nor socket that somebody could hold, and stays until
//! it is told to go. So the supervisor stops it, the server does when the supervisor is gone, and whoever
//! finds both gone does too. Requests wait while there is no server, for as long as that lasts.
//!
//! | module | does |
//! |---|---|
//! | [`wire`] | how commands and requests look |
//! | [`control`] | commands about a device: add, start, hand over, stop |
//! | [`queue`] | a thread that takes requests and answers them |
//! | [`serving`] | the server: makes a device, or takes a dead server's over |
//! | [`device`] | the supervisor's side: lets the device go, enlarges it |
//!
//! Data is copied when a request is handled, by `pread` and `pwrite` on the device's file
//! (`UBLK_F_USER_COPY`): one more call for each than with buffers that the driver fills, but one buffer a
//! thread in place of one a request.

mod control;
mod device;
mod queue;
mod serving;
pub(crate) mod wire;

use std::io;
use std::path::PathBuf;

use control::UblkControl;
pub(crate) use device::{UblkDevice, fail, mark, resize};
pub use serving::serve_ublk;
pub(crate) use serving::{OFFER, UblkStart};

/// What a driver must be able to do.
const NEEDED: u64 = wire::USER_COPY | wire::RECOVERY | wire::REISSUE;

/// Why there is no ublk device, or not the one that there should be.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no ublk, or this process may not use it.
    #[error(
        "the kernel's ublk: {0}; it needs root, io_uring and the driver (`modprobe ublk_drv`), or attach with `--way nbd` or \
         `--way fuse`"
    )]
    Missing(io::Error),
    /// The driver is too old.
    #[error(
        "the kernel's ublk is too old, 6.5 is the first that will do: attach with `--way nbd` or `--way fuse`"
    )]
    Old,
    /// The driver refused.
    #[error("the kernel's ublk would not {what}: {source}; its log (`dmesg`) may say more")]
    Refused {
        /// What was asked of it.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file of the device cannot be used.
    #[error("{path}: {source}")]
    Device {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// This process cannot do its part.
    #[error("serving the kernel's ublk: {0}")]
    Serve(io::Error),
    /// A server that is dead still has the device.
    #[error("the server before still has /dev/ublkb{0}: some of its threads do not end")]
    Occupied(u32),
    /// This is no device of the driver's.
    #[error("{0} is no ublk device")]
    Other(PathBuf),
}

/// Whether the driver is loaded, does what is needed, and may be used.
pub(crate) fn is_available() -> bool {
    let features = || UblkControl::open()?.features();
    rustix::process::geteuid().is_root() && features().is_ok_and(|has| has & NEEDED == NEEDED)
}

/// The block device.
fn block_path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Where its requests come from.
fn queues_path(number: u32) -> PathBuf {
    format!("/dev/ublkc{number}").into()
}
