//! The kernel's ublk: a block device whose requests a process receives and answers with io_uring.
//!
//! ```text
//!  ext4 ── /dev/ublkb0 ── driver ── /dev/ublkc0 ── server process: volume ── lenders, disk
//! ```
//!
//! The device belongs to the driver. No file or socket keeps it, so it stays until it is removed: by the
//! supervisor, by the server if the supervisor is gone, or by a later command that finds both gone. While
//! there is no server, requests wait without limit.
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | formats of commands and requests |
//! | [`control`] | commands about a device: add, start, hand over, stop |
//! | [`queue`] | a thread that receives and answers requests |
//! | [`serving`] | the server's side: creating a device, or taking over a dead server's |
//! | [`device`] | the supervisor's side: releasing and enlarging the device |
//!
//! Data is copied when a request is handled, with `pread` and `pwrite` on the device's file
//! (`UBLK_F_USER_COPY`). That costs one more system call per request than buffers filled by the driver, but
//! needs one buffer per thread instead of one per request.

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

/// Features that a driver must have.
const NEEDED: u64 = wire::USER_COPY | wire::RECOVERY | wire::REISSUE;

/// Failure of a ublk device.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// The kernel has no ublk, or this process may not use it.
    #[error(
        "cannot use the kernel's ublk: {0}; it needs root, io_uring and the driver (`modprobe ublk_drv`), or attach with `--way nbd` or \
         `--way fuse`"
    )]
    Missing(io::Error),
    /// The driver is too old.
    #[error(
        "the kernel's ublk driver is too old (Linux 6.5 is needed): attach with `--way nbd` or `--way fuse`"
    )]
    Old,
    /// The driver refused.
    #[error("the kernel's ublk refused to {what}: {source}; see also the kernel log (`dmesg`)")]
    Refused {
        /// The refused operation.
        what: &'static str,
        /// Error from the operating system.
        source: io::Error,
    },
    /// A file of the device cannot be used.
    #[error("{path}: {source}")]
    Device {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The server process failed.
    #[error("cannot serve the kernel's ublk: {0}")]
    Serve(io::Error),
    /// A dead server still has the device.
    #[error("the former server still has /dev/ublkb{0}: some of its threads do not end")]
    Occupied(u32),
    /// The path is not a ublk device.
    #[error("{0} is not a ublk device")]
    Other(PathBuf),
}

/// Whether the driver is loaded, has the needed features, and may be used.
pub(crate) fn is_available() -> bool {
    let features = || UblkControl::open()?.features();
    rustix::process::geteuid().is_root() && features().is_ok_and(|has| has & NEEDED == NEEDED)
}

/// Path of the block device.
fn block_path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// Path of the device's file for requests.
fn queues_path(number: u32) -> PathBuf {
    format!("/dev/ublkc{number}").into()
}
