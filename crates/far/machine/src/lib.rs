//! Internal to netram: programs use the crate `netram`.
//!
//! Far memory as values: a program's memory of which a part lies at lenders.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or uses `unsafe`. `netram-far` drives these
//! machines; so do `netram-sim` and the study of paging policies.
//!
//! | module | decides |
//! |---|---|
//! | [`arena`] | how a fault is served, which page is evicted, what is prefetched |
//! | [`deposit`] | where an owner's pages are in lenders' memory: the lender's side and the owner's side |
//! | [`paging`] | the paging policies of a paper, for the study and as the arena's replacement |
//! | [`limit`] | every bound, and the relations between bounds |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod deposit;
pub mod limit;
pub mod paging;
