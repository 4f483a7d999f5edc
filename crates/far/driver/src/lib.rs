//! Far memory: pages that this machine has no room for, in the memory of lenders.
//!
//! A [`FarVec`] is a vector that may be larger than this machine's memory: its pages are in an [`Arena`], which has a cap. A [`Depot`]
//! takes pages by number and gives them back. Where each is, and what becomes of it when a lender dies, decides
//! `netram_far_machine::deposit`; which of them is here, `netram_far_machine::arena`. Here are the links, the seals, the faults, and the bytes that must not go yet.
//!
//! | module | decides |
//! |---|---|
//! | [`config`] | which lenders, how many copies, how much of each |
//! | `seal` | what a page is at a lender; `blocks`: and some of it |
//! | `bare` | the floor of all this: a pager that does nothing but bring pages |
//! | `depot` | the handle; `depot/driver.rs`: the links; `depot/lead.rs`: who has them |
//! | `pack` | pages, compressed |
//! | `spill` | the spill file |
//! | `arena` | the handle; beside it: the threads that serve faults, evict and bring ahead |
//! | `vec` | a vector in an arena |
//! | `ground` | all of an arena, for an allocator |
//! | [`give_back()`] | what an owner has left that has ended |
//! | [`room`] | whether a process's limits leave an arena room |
//! | [`run`] | what `netram run` tells the library that it has a program load |
//! | [`threads`] | how its threads begin |
//! | `sys` | memory and `userfaultfd`: the crate's one unsafe module |
#![deny(unsafe_code)]

mod arena;
mod bare;
mod blocks;
pub mod config;
mod depot;
mod give_back;
mod ground;
mod pack;
pub mod room;
pub mod run;
mod seal;
mod spill;
mod sys;
pub mod threads;
mod vec;

pub use arena::{AccessError, Arena, ArenaConfig, ArenaError, ArenaStatus, WordAccess};
pub use bare::BarePager;
pub use config::Config;
pub use depot::{Depot, GetError, Got, OpenError};
pub use give_back::give_back;
pub use ground::Ground;
pub use netram_far_machine::arena::{Replacement, Tally};
pub use netram_far_machine::deposit::Page;
pub use netram_proto::id::DepositId;
pub use sys::Pod;
pub use vec::{FarVec, GrowError};
