//! A volume as a block device of this machine: `/dev/loopN` for any [`Device`](netram_disk::Device).
//!
//! ```text
//!  ext4 ── /dev/loop0 ── FUSE file ── server process: Device ── lenders, disk
//!              |                          |
//!          supervisor process ────────────+  starts it, holds the loop device, tells when one of them is gone
//! ```
//!
//! Two processes, because a process that serves a file must never wait for the kernel to write to that file: killed in
//! that moment it could neither end nor answer. The **server** ([`serve()`]) has the volume and answers the kernel; the
//! **supervisor** ([`attach()`]) does whatever may wait for the server: opening, binding and releasing the loop device.
//!
//! Nothing is left behind, whoever dies. The FUSE file system is mounted nowhere: only the loop device holds its one
//! file, so it ends with the loop device. The loop device ends when its last user closes it, the supervisor being one
//! of them. What can remain is a record in the [`Registry`], which the next one to come finds stale.
//!
//! Not here: ublk and the kernel's nbd, which are faster where a kernel has them.
#![deny(unsafe_code)]

mod file;
mod loop_device;
mod mount;
mod process;
mod registry;
mod serve;
mod supervise;
mod sys;
mod users;

pub use loop_device::{BindError, ResizeError, resize};
pub use process::Process;
pub use registry::{
    Claim, ClaimError, Entry, FindError, NAME_BYTES_MAX, Record, Registry, RegistryError, name_of,
};
pub use serve::{ServeError, serve};
pub use supervise::{AttachError, Attached, Going, Release, Request, attach};
pub use users::{User, users};
