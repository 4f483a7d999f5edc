//! Internal to netram: programs use the crate `netram`.
//!
//! netram's protocols as sans-I/O state machines: events and the time go in, actions come out.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or uses `unsafe`, so the simulator runs the
//! same machines that ship. Drivers (`netram-lender`, `netram-journal`) move the bytes.
//!
//! | module | decides |
//! |---|---|
//! | [`wire`] | the byte layout of frames and records; every check of input from a peer or a disk |
//! | [`session`] | which frames a connection may send before and after it is bound to a journal; how much beside appends |
//! | [`multicast`] | appends multicast once to all members: datagrams, reassembly, missing ranges |
//! | [`member`] | a lender's side of one journal: fence, join, append, trim, read |
//! | [`spill`] | when a memory may be written to a disk, and what the next start does with it |
//! | [`client`] | what each named client may have of a server, and what it has |
//! | [`owner`] | who owns a journal; what its owner signs |
//! | [`journal`] | the writer's side: views and acknowledgements, the local log, recovery |
//! | [`failure`] | the meaning of a failed system call: data lost, retry, or report |
//! | [`port`] | the traits that higher layers use: a log and a file |
//! | [`limit`] | every bound, and the relations between bounds |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod client;
pub mod failure;
pub mod id;
pub mod journal;
pub mod limit;
pub mod member;
pub mod multicast;
pub mod owner;
pub mod planted;
pub mod port;
pub mod reclaim;
pub mod session;
pub mod spill;
pub mod time;
pub mod wire;
