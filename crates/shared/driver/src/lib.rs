//! One region in the memory of several machines: what has threads, sockets and disks. What decides is
//! `netram_shared_machine`; `docs/shared.md` says how it all fits.
//!
//! | module | does |
//! |---|---|
//! | [`channel`] | whole messages, in order, between a node and the server; the server's door |
//! | [`node`] | a process that has the region in its memory: transactions under locks, pinned readers |
//! | [`server`] | the server's disk: region, spans, versions, nodes, in one log |
//! | [`saved_copy`] | a node's copy of the region, saved: what a lost region is made of again |
//! | [`limit`] | every bound of this crate |
#![forbid(unsafe_code)]

pub mod channel;
pub mod limit;
pub mod node;
pub mod saved_copy;
pub mod server;

pub use node::{Node, NodeOptions, RegionReader, Txn};
