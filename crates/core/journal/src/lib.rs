//! A journal whose newest bytes are durable in other machines' memory before the local disk has them.
//!
//! [`Journal::create`] makes a journal directory, [`Journal::open`] recovers it and starts a reign, and
//! [`netram_proto::port::RecordLog`] is what one does with it: append, wait, read, trim.
//!
//! The decisions are `netram-proto`'s ([`netram_proto::journal::JournalWriter`],
//! [`netram_proto::journal::Recovery`]); this crate moves bytes between a ring in memory, sockets and files.
//!
//! | module | idea |
//! |---|---|
//! | [`config`] | what a journal is opened with |
//! | [`paths`] | where a journal's files are, their creation and their lock |
//! | [`file`] | a real file as `proto` sees one |
//! | `sys` | the ring: one mapping seen twice, so that no record is ever cut (the crate's only unsafe) |
//! | [`seal`] | records are sealed before they leave, so that a lender never sees plaintext |
//! | `append` | a record is made where it will stay |
//! | `core` | the state under the journal's one lock: machine, ring, links |
//! | `commit_wait` | how commits wait: a leader polls the links, followers watch, the disk has a vote |
//! | `disk` | the thread that writes the ring to the log and syncs |
//! | `maintenance` | the thread that connects lenders, keeps time and stores views |
//! | [`open`] | recovery, from the lock to the first append |
//! | [`reason`] | why a lender does not count |
//! | `copy` | what whoever feeds a copy elsewhere is told |
//! | [`fork`] | a process is told from its children |
//! | [`follow`] | a journal that is kept for a writer elsewhere |
//! | [`orphan`] | what an earlier process of a shared region's node left: opened to be offered to the server |
//! | [`fenced_journal`] | what a dead node left at its members: read by the server |
//! | `delete` | the files of a journal that is of no use any more |
//! | [`forget`] | what is deleted: its lenders are told, also later |
//! | [`inspect`] | looking at a journal without opening it for writing |

mod append;
mod commit_wait;
pub mod config;
mod copy;
mod core;
mod delete;
mod disk;
pub mod error;
pub mod fenced_journal;
pub mod file;
pub mod follow;
pub mod forget;
pub mod fork;
pub mod inspect;
mod journal;
mod links;
mod maintenance;
pub mod open;
pub mod orphan;
pub mod paths;
pub mod reason;
mod records;
pub mod seal;
mod sys;

pub use config::{JournalConfig, MulticastOptions, NewestClaim, ReplicaOrigin};
pub use error::{
    JournalCreateError, JournalDeleteError, JournalGrowError, JournalNotClosed, JournalOpenError,
};
pub use fenced_journal::{FencedJournal, FencedJournalError};
pub use follow::{JournalFollower, JournalInit};
pub use fork::ForkMark;
pub use inspect::JournalInspector;
pub use journal::{Journal, JournalStatus};
pub use open::{GrowReport, JournalRecovery, OpenCheck, claim_note};
pub use orphan::OrphanJournal;
pub use paths::{JournalLayout, JournalLock, JournalPaths};
pub use reason::{LinkFailure, QuorumError, UncountedReason, UnreachableLenders};
