//! Internal to netram: programs use the crate `netram`.
//!
//! Far memory: pages that this machine has no room for, in the memory of lenders.
//!
//! A [`FarVec`] is a vector that may be larger than this machine's memory: its pages are in an [`Arena`],
//! which has a cap of local memory. [`RemotePages`] stores pages by number. `netram_far_machine::deposit`
//! decides where each page is and what happens when a lender dies; `netram_far_machine::arena` decides which
//! pages are local. This crate has the links, the seals, the faults, and the bytes of pending pages.
//!
//! | module | does |
//! |---|---|
//! | [`config`] | settings: lenders, copies, bounds |
//! | `arena` | an arena: its handle, and the threads that serve faults, evict and prefetch |
//! | `arena_space` | all of an arena, for an allocator |
//! | `vec` | a vector in an arena |
//! | `remote_pages` | storage of pages by number; `remote_pages/driver.rs`: the links; `remote_pages/leader.rs`: which thread drives them |
//! | `seal` | sealing of pages; `block_cipher`: decryption of single blocks |
//! | `compression` | compressed pages |
//! | `spill` | the spill file |
//! | `bare_pager` | a baseline for measurements: a pager that only fetches pages |
//! | [`give_back()`] | frees what an ended owner left at lenders |
//! | [`process_limits`] | checks whether a process's limits allow an arena |
//! | [`run`] | settings that `netram run` passes to the preloaded library |
//! | [`threads`] | start of the crate's threads |
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

pub use arena::metrics::FAR_FAMILIES;
pub use arena::{Arena, ArenaConfig, ArenaError, ArenaStatus, FarAccessError, WordAccess};
pub use arena_space::ArenaSpace;
pub use bare_pager::BarePager;
pub use config::RemotePagesConfig;
pub use give_back::give_back;
pub use netram_far_machine::arena::{ArenaTally, Replacement};
pub use netram_far_machine::deposit::Page;
pub use netram_transport::OwnerKey;
pub use remote_pages::{PageContent, PageGetError, RemotePages, RemotePagesOpenError};
pub use sys::Pod;
pub use vec::{FarVec, FarVecError};
