//! Far memory: pages that this machine has no room for, in the memory of lenders.
//!
//! A [`FarVec`] is a vector that may be larger than this machine's memory: its pages are in an [`Arena`],
//! which has a cap. A [`RemotePages`] takes pages by number and gives them back. Where each is, and what
//! becomes of it when a lender dies, decides `netram_far_machine::deposit`; which of them is here,
//! `netram_far_machine::arena`. Here are the links, the seals, the faults, and the bytes that must not go
//! yet.
//!
//! | module | decides |
//! |---|---|
//! | [`config`] | which lenders, how many copies, how much of each |
//! | `seal` | what a page is at a lender; `block_cipher`: and some of it |
//! | `bare_pager` | the floor of all this: a pager that does nothing but bring pages |
//! | `remote_pages` | the handle; `remote_pages/driver.rs`: the links; `remote_pages/lead.rs`: who has them |
//! | `pack` | pages, compressed |
//! | `spill` | the spill file |
//! | `arena` | the handle; beside it: the threads that serve faults, evict and bring ahead |
//! | `vec` | a vector in an arena |
//! | `arena_space` | all of an arena, for an allocator |
//! | [`give_back()`] | what an owner has left that has ended |
//! | [`process_limits`] | whether a process's limits leave an arena room |
//! | [`run`] | what `netram run` tells the library that it has a program load |
//! | [`threads`] | how its threads begin |
//! | `sys` | memory and `userfaultfd`: the crate's one unsafe module |
#![deny(unsafe_code)]

mod arena;
mod arena_space;
mod bare_pager;
mod block_cipher;
mod compression;
pub mod config;
mod give_back;
pub mod process_limits;
mod remote_pages;
pub mod run;
mod seal;
mod spill;
mod sys;
pub mod threads;
mod vec;

pub use arena::{Arena, ArenaConfig, ArenaError, ArenaStatus, FarAccessError, WordAccess};
pub use arena_space::ArenaSpace;
pub use bare_pager::BarePager;
pub use config::RemotePagesConfig;
pub use give_back::give_back;
pub use netram_far_machine::arena::{ArenaTally, Replacement};
pub use netram_far_machine::deposit::Page;
pub use netram_proto::id::DepositId;
pub use remote_pages::{PageContent, PageGetError, RemotePages, RemotePagesOpenError};
pub use sys::Pod;
pub use vec::{FarVec, FarVecError};
