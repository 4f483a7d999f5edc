//! A virtual world for netram's machines: one seed decides everything, and replays it.
//!
//! The machines inside (`Writer`, `Recovery`, `WriterHandle`, `LogFile`, ...) are the ones that ship; the
//! network, the clock, the disks, the power and the people are virtual. `docs/simulator.md` says what the
//! world can do, which oracle watches which rule, and how to replay a seed.
//!
//! | module | is |
//! |---|---|
//! | [`world`] | machines, agenda, clock |
//! | [`profile`] | what one seed's world is like |
//! | `net`, `lane_pair`, [`disk`], [`lender`], [`process`] | its parts |
//! | `nemesis`, `damage`, `hostile`, `intruder` | what goes wrong |
//! | `addresses` | addresses, which lender each leads to, and how that changes |
//! | `server` | the server of a shared region, as far as one node's journal is concerned |
//! | [`history`], `past_epochs` | what truly happened |
//! | [`check`] | the oracles, one a rule |
//! | [`region`] | worlds of their own: several nodes that share a region, with its server |
//! | `database` | worlds of their own: several processes that have a database open |
//! | [`scenario`] | what the client program does |
//! | [`storage`] | segments on a virtual disk, for `rvm` |
//! | [`runner`] | seeds, threads, reports |
#![forbid(unsafe_code)]

mod addresses;
pub mod check;
pub mod coverage;
mod damage;
mod data;
mod database;
mod deposit;
pub mod disk;
pub mod history;
mod hostile;
mod intruder;
mod lane_pair;
pub mod lender;
mod nemesis;
mod net;
mod past_epochs;
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
