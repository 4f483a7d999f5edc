//! Far memory: pages that this machine has no room for, in the memory of lenders.
//!
//! A [`Depot`] takes pages by number and gives them back. Where each is, and what becomes of it when a lender dies, decides
//! `netram_proto::deposit`; here are the links, the seals, and the bytes that must not go yet.
//!
//! | module | decides |
//! |---|---|
//! | [`config`] | which lenders, how many copies, how much of each |
//! | `seal` | what a page is at a lender |
//! | `depot` | the handle; `depot/driver.rs`: the thread that has the links |
//!
//! *Not here yet*: the arena, which makes faults of references to pages that are away (`docs/far.md`).
#![forbid(unsafe_code)]

pub mod config;
mod depot;
mod seal;

pub use config::Config;
pub use depot::{Depot, GetError, Got, OpenError};
pub use netram_proto::deposit::Page;
