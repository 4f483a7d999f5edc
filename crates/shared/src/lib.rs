//! One region in the memory of several machines: what has threads and sockets. What decides is
//! `netram_proto::shared`; `docs/shared.md` says how it all fits.
//!
//! | module | does |
//! |---|---|
//! | [`channel`] | whole messages, in order, between a node and the server; the server's door |
//! | [`limit`] | every bound of this crate |
#![forbid(unsafe_code)]

pub mod channel;
pub mod limit;
