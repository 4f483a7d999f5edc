//! Internal to netram: programs use the crate `netram`.
//!
//! The lender: a daemon that lends RAM to journals on other machines.
//!
//! A [`Lender`] reserves its memory in full at the start, in a file that outlives its process, and keeps the
//! unsynced tails of journals there. `netram_proto::member` decides what a member may promise; this crate has
//! the threads, the sockets and the memory.
//!
//! ```text
//! clients -> acceptor: handshake, first frame -> shard that owns the journal: members, windows
//!                                                      |
//!                                                   store: superblock, slots, chunks
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `store`, `file`, `superblock`, `slot`, `slots` | state that outlives the process, and the checks before it is trusted |
//! | `memory` | the chunks of a journal's window |
//! | `silent` | files of windows whose clients are silent |
//! | `shard`, `connection`, `journal`, `outbox` | serving journals: order of service, batching of answers |
//! | `accept` | handshakes and first frames of new connections |
//! | `deposit` | pages of other machines' far-memory arenas |
//! | `data` | the interface to a service that keeps replicas of volumes on this machine's disk |
//! | [`report`], `report_desk` | the status, and the thread that builds it |
//! | [`metrics`] | what a lender counts and times |
//! | `power` | what the lender does when its machine is on battery |
//! | `lender`, `state`, `drain` | starting, draining and stopping |
//! | `spill` | windows on a disk while the machine is off |
//! | [`limit`] | all limits |
//!
//! *Not here*: memory that was not written to a disk does not survive a loss of power. Windows are lent until
//! the lender stops, however short of memory its machine is; deposits are not (`deposit/pressure.rs`).
#![deny(unsafe_code)]

mod accept;
mod config;
mod connection;
mod data;
mod deposit;
mod drain;
mod error;
mod file;
#[doc(hidden)]
pub mod fuzzed;
mod journal;
mod lender;
pub mod limit;
mod memory;
pub mod metrics;
mod outbox;
mod pacer;
mod power;
mod reclaim;
pub mod report;
mod report_desk;
mod shard;
mod silent;
mod slot;
mod slots;
mod spill;
mod state;
mod stats;
mod store;
mod superblock;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;
#[cfg(test)]
mod test_bench;
mod thread_pulses;

pub use config::{
    ClientLimits, DataListener, LenderConfig, MemoryWatch, OPERATOR_SUFFIX, operator_path, remove_store,
};
pub use data::{DataPermit, DataService, DataSession};
pub use error::{LenderStartError, WindowStoreError};
pub use lender::{Lender, StopReport};
pub use memory::JournalMemory;
pub use power::PowerReport;
pub use report::{
    AmountReport, ClientReport, CopiesReport, DepositReport, JournalReport, LeftReport, MemoryReport,
    ReplicaReport, ScrubReport, StatusReport,
};
pub use spill::{SpillError, SpillReport};
pub use store::{RestoredMember, StoreConfig, StoreOrigin, WindowStore};
