//! Internal to netram: programs use the crate `netram`.
//!
//! The kernel's FUSE: one layer for mounted directories and attached volumes.
//!
//! No library is used, because a server must be able to take over a session in which another was killed. That
//! one did the handshake with the kernel, and requests that it left unanswered are sent again
//! ([`FuseSession::take_over`]).
//!
//! ```text
//!  program ── kernel ── /dev/fuse ── FuseDevice ── FuseRequest ──▶ FuseService::answer
//!                                        ◀── ReplyBody ──────────────┘
//! ```
//!
//! A [`FuseService`] decides; threads of a [`FuseSession`] read requests and write replies, with one buffer
//! each for both: a request allocates nothing.
//!
//! | module | purpose |
//! |---|---|
//! | `wire` | formats of requests and replies, as values |
//! | `affinity` | runs an answering thread on the core of its caller |
//! | `device` | the kernel's end of a session: receiving, replying, registered files |
//! | `ring` | requests by io_uring |
//! | `session` | the handshake, taking over, and the threads that answer |
//! | `mount` | a mount by the kernel's calls, without a path |
//! | `helper` | a mount by `fusermount3`, for users other than root |
//! | [`fuzzed`] | entry points for fuzzers |
#![deny(unsafe_code)]

mod affinity;
mod device;
#[doc(hidden)]
pub mod fuzzed;
mod helper;
mod mount;
mod ring;
mod session;
mod sys;
mod wire;

pub use affinity::follow_caller;
pub use device::{BackingFile, FuseDevice};
pub use helper::{FUSERMOUNT, mount_by_helper};
pub use mount::{DetachedMount, MountAttrFlags};
pub use ring::cores;
pub use session::{AgreedSession, FuseService, FuseSession, REQUEST_BYTES_MAX};
pub use wire::capability;
pub use wire::init::{FuseAgreement, FuseInit, FuseOptions};
pub use wire::open_flag;
pub use wire::reply::{FuseAttributes, FuseSpace, FuseTtl, OpenReply, ReplyBody, error_number, reply_header};
pub use wire::request::{
    ForgetList, FuseCaller, FuseOperation, FuseRequest, FuseTime, FuseWrite, NewTime, SetAttributes,
};
