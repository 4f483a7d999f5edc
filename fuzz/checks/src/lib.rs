//! Fuzz targets: every parser that reads bytes from a stranger or a damaged disk, and the machines behind the
//! parsers.
//!
//! A [`FuzzTarget`] is a function of arbitrary bytes that returns, or panics if an invariant does not hold.
//! `fuzz/` runs it under libFuzzer, and this crate's test runs all seeds and every file in `fuzz/cases` with
//! the ordinary toolchain. `docs/design/testing.md` describes both.
//!
//! | module | feeds |
//! |---|---|
//! | [`frames`] | frames of the wire, records of the log |
//! | [`member`] | a lender's member: fences, joins, appends, reads, the kill of its process |
//! | [`recovery`] | a client's recovery: three members, one of which lies |
//! | [`multicast`] | datagrams; a writer whose lenders answer arbitrarily |
//! | [`journal`] | views, slots, superblocks, logs |
//! | [`replica`] | data sessions |
//! | [`region`] | a shared region's messages, its server, its nodes |
//! | [`deposit`] | far memory, both sides |
//! | [`nbd`] | NBD's options, requests, and whole sessions |
//! | [`formats`] | catalogs, records, heaps, settings, reports |
//!
//! Other crates expose their internals in a hidden module `fuzzed`.

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
