//! Internal to netram: programs use the crate `netram`.
//!
//! Driver of a shared region, the memory that several machines share: threads, sockets and disks. The
//! protocol is in `netram_shared_machine`; see `docs/design/shared.md` for an overview.
//!
//! | module | purpose |
//! |---|---|
//! | [`channel`] | whole messages, in order, between a node and the server; the server's acceptor |
//! | [`node`] | a process with the region in its memory: transactions under locks, pinned readers |
//! | [`server`] | the server's disk: region, spans, versions and nodes, in one log |
//! | [`saved_copy`] | a node's saved copy of the region, from which a lost region is rescued |
//! | [`limit`] | every bound of this crate |
#![forbid(unsafe_code)]

pub mod channel;
pub mod limit;
pub mod node;
pub mod saved_copy;
pub mod server;

pub use node::{Node, NodeOptions, RegionReader, Txn};
