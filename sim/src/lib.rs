//! A simulated world for netram's machines: one seed determines everything, and replays it.
//!
//! The machines inside (`JournalWriter`, `Recovery`, `WriterHandle`, `LogFile`, ...) are the ones that ship;
//! the network, clock, disks, power and operators are simulated. `docs/design/simulator.md` lists the faults,
//! the oracle of each rule, and how to replay a seed.
//!
//! A [`world::World`] consists of parts, each with private state. Drivers stand above it. From below: parts,
//! world, oracles, drivers, calls of programs, scenarios. No module imports one above it.
//!
//! | module | is |
//! |---|---|
//! | [`kernel`], `event` | clock, schedule, random source, trace, counters; the events |
//! | `event_kernel` | the same for worlds with events of their own |
//! | [`profile`] | parameters of one seed's world |
//! | [`lenders`], [`lender`], [`window_ring`], `named_clients` | part: the lenders, addresses and clients |
//! | `net`, `slots`, `hostile` | part: connections, partitions, answers of a lender that lies |
//! | [`hosts`], [`disk`], `log_image`, `log_reading` | part: the client's machines and their disks |
//! | [`history`], [`volume_history`], `past_epochs` | true history, to compare with |
//! | `process::table`, `process::serving` | part: the client's processes |
//! | `data`, `server` | parts: the data lender, and the server of a shared region |
//! | `backing_disk`, `nemesis` | parts: the disk of a directory of files, and the fault injector |
//! | [`world`] | the parts together |
//! | [`check`] | the oracles, one for each rule |
//! | `delivery`, [`process`], `data::events` | drivers: they pass events to the machines inside |
//! | `inject`, `damage`, `intruder`, `client_faults`, `membership` | drivers: faults, and operators' orders |
//! | `event_loop` | the event loop |
//! | [`client`] | calls of programs, which run the world while they wait |
//! | [`region`] | worlds of their own: several nodes that share a region, with its server |
//! | `database` | worlds of their own: several processes that have a database open |
//! | [`scenario`] | client programs |
//! | [`storage`] | segments on a virtual disk, for `rvm` |
//! | [`runner`] | seeds, threads, reports |
#![forbid(unsafe_code)]

mod backing_disk;
pub mod check;
pub mod client;
mod client_faults;
pub mod coverage;
mod damage;
mod data;
mod database;
mod delivery;
mod deposit;
pub mod disk;
mod event;
mod event_kernel;
mod event_loop;
pub mod history;
mod hostile;
pub mod hosts;
mod inject;
mod intruder;
pub mod kernel;
mod lane_pair;
pub mod lender;
mod lender_spill;
pub mod lenders;
mod log_image;
mod log_reading;
mod membership;
mod named_clients;
mod nemesis;
mod net;
mod past_epochs;
pub mod process;
pub mod profile;
mod queue;
mod reclaiming;
pub mod region;
pub mod rng;
pub mod runner;
pub mod scenario;
mod server;
mod signatures;
mod silent_window;
mod slots;
mod spilling;
pub mod storage;
pub mod trace;
pub mod volume_history;
pub mod window_ring;
pub mod world;
