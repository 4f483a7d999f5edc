//! netram's protocols as values: events and the time go in, actions come out.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or uses `unsafe`, so the simulator runs the
//! very machines that ship. Drivers (`netram-lender`, `netram-journal`) move the bytes.
//!
//! | module | decides |
//! |---|---|
//! | [`wire`] | how frames and records look as bytes; every check on what a peer sent |
//! | [`session`] | what a connection may say before and after it is bound to a journal |
//! | [`multicast`] | appends sent once for all members, by multicast: datagrams, order, holes |
//! | [`member`] | what a lender does for one journal: seal, join, append, trim, read |
//! | [`journal`] | the writer's views and acknowledgements, the local log, recovery |
//! | [`failure`] | what a failed system call means: data lost, retry, or report |
//! | [`port`] | the traits that layer 1 speaks to: a log and a file |
//! | [`limit`] | every bound, and the relations between bounds |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod failure;
pub mod id;
pub mod journal;
pub mod limit;
pub mod member;
pub mod multicast;
pub mod planted;
pub mod port;
pub mod session;
pub mod time;
pub mod wire;
