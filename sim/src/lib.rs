//! A simulated world for netram's machines: one seed determines everything, and replays it.
//!
//! The machines inside (`JournalWriter`, `Recovery`, `WriterHandle`, `LogFile`, ...) are the ones that ship;
//! the network, clock, disks, power and operators are simulated. `docs/design/simulator.md` lists the faults, the
//! oracle of each rule, and how to replay a seed.
//!
//! | module | is |
//! |---|---|
//! | [`world`] | machines, event queue, clock |
//! | [`profile`] | parameters of one seed's world |
//! | `net`, `lane_pair`, [`disk`], [`lender`], [`process`] | its parts |
//! | `nemesis`, `damage`, `hostile`, `intruder` | faults |
//! | `addresses` | the lenders' addresses, which lender each leads to, and how that changes |
//! | `server` | the server of a shared region, as far as one node's journal is concerned |
//! | [`history`], `past_epochs` | true history, to compare with |
//! | [`check`] | the oracles, one for each rule |
//! | [`region`] | worlds of their own: several nodes that share a region, with its server |
//! | `database` | worlds of their own: several processes that have a database open |
//! | [`scenario`] | client programs |
//! | [`storage`] | segments on a virtual disk, for `rvm` |
//! | [`runner`] | seeds, threads, reports |
#![forbid(unsafe_code)]

mod backing_disk;
pub mod check;
pub mod client;
pub mod coverage;
mod damage;
mod data;
mod database;
mod delivery;
mod deposit;
pub mod disk;
mod event;
mod event_loop;
pub mod history;
mod hostile;
pub mod hosts;
mod inject;
mod intruder;
pub mod kernel;
mod lane_pair;
pub mod lender;
pub mod lenders;
mod log_image;
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
pub mod volume_history;
pub mod window_ring;
pub mod world;
