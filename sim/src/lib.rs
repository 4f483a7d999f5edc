//! A virtual world for netram's machines: one seed decides everything, and replays it.
//!
//! The machines inside (`Writer`, `Recovery`, `Member`, `LogFile`, ...) are the ones that ship; the network, the clock, the
//! disks, the power and the people are virtual. `docs/simulator.md` says what the world can do, which oracle watches which
//! rule, and how to replay a seed.
//!
//! | module | is |
//! |---|---|
//! | [`world`] | machines, agenda, clock |
//! | [`profile`] | what one seed's world is like |
//! | `net`, `lanes`, [`disk`], [`lender`], [`process`] | its parts |
//! | `nemesis`, `damage`, `hostile`, `intruder` | what goes wrong |
//! | `names` | addresses, which lender each leads to, and how that changes |
//! | `server` | the server of a shared region, as far as one node's journal is concerned |
//! | [`history`], `past` | what truly happened |
//! | [`check`] | the oracles, one a rule |
//! | [`region`] | worlds of their own: several nodes that share a region, with its server |
//! | `party` | worlds of their own: several processes that have a database open |
//! | [`scenario`] | what the client program does |
//! | [`storage`] | segments on a virtual disk, for `rvm` |
//! | [`runner`] | seeds, threads, reports |
#![forbid(unsafe_code)]

pub mod check;
pub mod coverage;
mod damage;
mod data;
mod deposit;
pub mod disk;
pub mod history;
mod hostile;
mod intruder;
mod lanes;
pub mod lender;
mod names;
mod nemesis;
mod net;
mod party;
mod past;
pub mod process;
pub mod profile;
mod queue;
pub mod region;
pub mod rng;
pub mod runner;
pub mod scenario;
mod server;
pub mod storage;
pub mod trace;
pub mod world;
