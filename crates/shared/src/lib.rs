//! One region in the memory of several machines: what has threads, sockets and disks. What decides is
//! `netram_proto::shared`; `docs/shared.md` says how it all fits.
//!
//! | module | does |
//! |---|---|
//! | [`channel`] | whole messages, in order, between a node and the server; the server's door |
//! | [`server`] | the server's disk: region, spans, versions, nodes, in one log |
//! | [`limit`] | every bound of this crate |
#![forbid(unsafe_code)]

pub mod channel;
pub mod limit;
pub mod server;
