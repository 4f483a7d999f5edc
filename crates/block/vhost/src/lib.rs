//! Internal to netram: programs use the crate `netram`.
//!
//! A block device as a disk of a virtual machine (vhost-user-blk): the guest's driver and this process share
//! the guest's memory, and requests pass through queues in it.
//!
//! ```text
//! guest                     queue's thread                        device
//!   requests in a queue ->  request: what is asked for            write, zero, discard, read, flush
//!                           batch: one wait, answers in order     wait
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`request`] | formats of requests |
//! | [`disk_config`] | the fields in which a guest's driver reads size and limits |
//! | `batch` | order of starting, completing and answering requests |
//! | `backend` | the library's events, handed to batches |
//! | [`VhostServer`] | one virtual machine after the other |
//! | [`limit`] | all bounds |
//!
//! The protocol between the processes and the format of queues come from the crates `vhost-user-backend` and
//! `virtio-queue`. Requests of a queue are answered in the order in which they came. So the number of
//! answered ones, which stands in the guest's memory, tells a server that takes over which are not answered.
//! If a killed server had begun those, the guest cannot see that they are carried out again.

mod backend;
mod batch;
pub mod disk_config;
pub mod limit;
pub mod request;
mod server;
mod stats;
mod sys;

pub use server::{VhostServer, VhostServerConfig, VhostStartError};
pub use stats::VhostStats;
