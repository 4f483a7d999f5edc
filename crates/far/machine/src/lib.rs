//! Far memory as values: a program's memory of which a part lies at lenders.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or uses `unsafe`. `netram-far` drives it;
//! `netram-sim` and the study of paging policies run the same machines.
//!
//! | module | decides |
//! |---|---|
//! | [`paging`] | which page is in local memory, which beyond, and what moves when one is referenced |
//! | [`arena`] | a program's memory of which a part is elsewhere: what a fault gets, which frame leaves, what comes ahead |
//! | [`deposit`] | pages of one machine's arena in other machines' memory: the lender's side, the owner's side |
//! | [`limit`] | every bound, and the relations between bounds |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod arena;
pub mod deposit;
pub mod limit;
pub mod paging;
