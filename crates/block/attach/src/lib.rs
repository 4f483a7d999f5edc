//! Internal to netram: programs use the crate `netram`.
//!
//! A volume as a block device of this machine: `/dev/ublkbN`, `/dev/nbdN` or `/dev/loopN` for any
//! [`BlockDevice`](netram_block::BlockDevice).
//!
//! ```text
//!  ext4 ── /dev/loop0 ── FUSE file ── server process: volume ── lenders, disk
//!              |                          |
//!          supervisor process ────────────+  starts it, holds the loop device, notices its end
//! ```
//!
//! Two processes share the work, because a process that serves a file must never wait for the kernel to write
//! to that file: if killed at that time, it could neither end nor answer. The **server** ([`serve()`]) has
//! the volume and answers the kernel. The **supervisor** ([`attach()`]) does everything that may wait for the
//! server: opening, binding and releasing the loop device.
//!
//! The server needs no rights: the supervisor makes the mount, and gives it the kernel's end. So another user
//! may run it, whom the supervisor does not trust ([`ServerListener`]).
//!
//! The death of either process leaves nothing behind. The FUSE file system is not mounted at any path:
//! only the loop device holds its one file, so it ends with the loop device. The loop device ends when its
//! last user closes it, and the supervisor is one of them. Only a record in the [`Registry`] can remain,
//! which the next attach recognises as stale.
//!
//! With the kernel's own NBD client ([`AttachMethod::Nbd`]) there is a socket between the two, but no file
//! and no loop device:
//!
//! ```text
//!  ext4 ── /dev/nbd0 ── socket ── server process: volume ── lenders, disk
//! ```
//!
//! When a server has died, the supervisor starts another ([`VolumeAttachment::restart`]), which opens the
//! volume and answers the open requests. Users of the device only wait. With ublk and the kernel's NBD
//! client, requests wait while there is no server; with FUSE, while the supervisor has the kernel's end of
//! the session. A hanging server is killed and replaced ([`VolumeAttachment::look`]).
//!
//! With the kernel's ublk ([`AttachMethod::Ublk`]) the driver itself is between the two: see the crate's
//! module `ublk`.
#![deny(unsafe_code)]

mod attach_method;
mod attached_device;
mod device_offer;
mod failure_log;
mod fuse;
#[doc(hidden)]
pub mod fuzzed;
mod loop_device;
mod nbd_device;
mod netlink;
mod node;
mod openers;
mod registry;
mod release_task;
mod serve;
mod supervise;
mod sys;
mod ublk;
mod users;

pub use attach_method::AttachMethod;
pub use attached_device::{DeviceResizeError, FailError, fail, resize};
pub use loop_device::LoopBindError;
pub use nbd_device::NbdError;
pub use netram_supervise::{
    ProcessIdentity, RestartBudget, ServerError, ServerListener, become_io_flusher, become_server, say_closed,
};
pub use registry::{
    AttachEntry, AttachRecord, ClaimError, FindError, NAME_BYTES_MAX, NameClaim, Registry, RegistryError,
    name_of,
};
pub use serve::{AttachServeError, serve, serve_nbd};
pub use supervise::{
    AttachError, AttachRequest, DetachingDevice, ReleaseOutcome, ServerHealth, ServerSource,
    VolumeAttachment, attach,
};
pub use ublk::{UblkError, serve_ublk};
pub use users::{DeviceUser, users};
