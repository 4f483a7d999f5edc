//! What fuzzers feed with bytes: every parser that reads what a stranger sends or a damaged disk gives, and
//! the machines behind them.
//!
//! A [`FuzzTarget`] is a function of bytes that returns, or panics because something does not hold that must,
//! whatever the bytes are. It does not matter who chooses them: `fuzz/` lets libFuzzer, and this crate's test
//! runs all seeds and every file in `fuzz/cases` with the ordinary toolchain. `docs/testing.md` says how both
//! are run.
//!
//! | module | feeds |
//! |---|---|
//! | [`frames`] | frames of the wire, records of the log |
//! | [`member`] | a lender's member: fences, joins, appends, reads, the kill of its process |
//! | [`recovery`] | a client's recovery: three members, one of whom lies |
//! | [`multicast`] | datagrams; a writer whose lenders answer anything |
//! | [`journal`] | views, slots, superblocks, logs |
//! | [`replica`] | data sessions |
//! | [`region`] | a shared region's messages, its server, its nodes |
//! | [`deposit`] | far memory, both sides |
//! | [`nbd`] | NBD's options, requests, and whole sessions |
//! | [`formats`] | catalogs, records, heaps, settings, reports |
//!
//! What other crates keep to themselves they lend in a hidden module `fuzzed`.

#![forbid(unsafe_code)]

pub mod deposit;
pub mod formats;
pub mod frames;
pub mod input;
pub mod journal;
pub mod member;
pub mod multicast;
pub mod nbd;
pub mod recovery;
pub mod region;
pub mod replica;
mod seeds;
mod targets;

pub use targets::{FuzzTarget, InputSource, TARGETS, programs, target};
