//! The lender: a daemon that lends RAM to journals on other machines.
//!
//! A [`Lender`] reserves memory in full when it starts, in a file that outlives its process, and keeps the
//! unsynced tails of journals there. What a member may promise is decided in `netram_proto::member`; here are
//! the threads, the sockets and the memory around it.
//!
//! ```text
//! clients -> acceptor: handshake, first frame -> shard that owns the journal: members, windows
//!                                                      |
//!                                                   store: superblock, slots, chunks
//! ```
//!
//! | module | decides |
//! |---|---|
//! | `store`, `file`, `superblock`, `slot` | what outlives the process, and when it may be believed |
//! | `memory` | which chunks make a journal's window |
//! | `shard`, `connection`, `journal`, `outbox` | who is served when, and what is sent together |
//! | `accept` | who is let in |
//! | `deposit` | pages of other machines' arenas: whose, where, how long |
//! | `data` | who keeps copies of volumes on this machine's disk, if anybody does |
//! | `lender`, `state` | starting and stopping |
//! | [`limit`] | every bound |
//!
//! *Not here*: power loss; and journals' windows are lent until the lender is stopped, however short of
//! memory its machine is. Deposits are not (`deposit/pressure.rs`).
#![deny(unsafe_code)]

mod accept;
mod config;
mod connection;
mod data;
mod deposit;
mod error;
mod file;
#[doc(hidden)]
pub mod fuzzed;
mod journal;
mod lender;
pub mod limit;
mod memory;
mod outbox;
pub mod report;
mod shard;
mod slot;
mod slots;
mod state;
mod stats;
mod store;
mod superblock;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;

pub use config::{ClientLimits, DataListener, LenderConfig, MemoryWatch};
pub use data::{DataPermit, DataService, DataSession};
pub use error::{LenderStartError, WindowStoreError};
pub use lender::{Lender, StopReport};
pub use memory::JournalMemory;
pub use report::{CopiesReport, DepositReport, JournalReport, ReplicaReport, ScrubReport, StatusReport};
pub use store::{RestoredMember, StoreConfig, StoreOrigin, WindowStore};
