//! Internal to netram: programs use the crate `netram`.
//!
//! A journal whose newest bytes are durable in other machines' memory before the local disk has them.
//!
//! [`Journal::create`] makes a journal directory, and [`Journal::open`] recovers it and begins an epoch.
//! [`netram_proto::port::RecordLog`] has the operations: append, wait, read, trim.
//!
//! The decisions are `netram-proto`'s ([`netram_proto::journal::JournalWriter`],
//! [`netram_proto::journal::Recovery`]); this crate moves bytes between a ring in memory, sockets and files.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | what a journal is opened with |
//! | `auto` | the lenders that `lenders = "auto"` finds, and the file that keeps their addresses |
//! | [`settings`] | the same, from a settings file and the environment |
//! | [`durable`] | files that are complete or absent after a crash |
//! | [`paths`] | a journal's files: names, creation, lock |
//! | [`mod@file`] | a real file behind `proto`'s file trait |
//! | `sys` | the ring, mapped twice so that no record wraps (the crate's only unsafe module) |
//! | [`seal`] | encryption of records, so that a lender never sees plaintext |
//! | `append` | encoding of records in the ring |
//! | `core` | the state under the journal's one lock: writer, ring, links |
//! | `commit_wait` | waiting for commits: one leader polls the links, followers watch; the disk votes too |
//! | `commit_waiters` | the waiting threads: who leads, who sleeps, how they are woken |
//! | `disk` | the thread that writes the ring to the log and syncs it |
//! | `events` | the last events of an open journal |
//! | [`membership`], [`orders`] | changing lenders and rule while a journal is open; orders of other processes |
//! | `links`, `maintenance` | links to lenders; the thread that reconnects them, keeps time and stores views |
//! | [`open`] | recovery, from the lock to the first append |
//! | [`owner`] | the owner of a journal on its links: proofs and signed fences |
//! | [`reason`] | why a lender does not count, and its message |
//! | [`metrics`] | counters and latencies |
//! | `copy` | notifications for the thread that feeds a replica |
//! | [`disk_demand`], `ups` | making commits wait for the disk, for a while; while this machine is on battery |
//! | [`fork`] | detection of children of `fork` |
//! | [`follow`] | a journal kept for a writer on another machine |
//! | [`orphan`] | a journal left by an earlier process of a shared region's node, to be offered to the server |
//! | [`fenced_journal`] | a dead node's journal, read by the server from its members |
//! | `delete` | removal of a journal's files |
//! | [`forget`] | the list of lenders that must still be told of deleted journals |
//! | [`inspect`] | reading a journal without opening it for writing |

mod append;
mod auto;
mod commit_wait;
mod commit_waiters;
pub mod config;
mod copy;
mod core;
mod delete;
mod disk;
pub mod disk_demand;
mod disk_writer;
pub mod durable;
pub mod error;
mod events;
pub mod fenced_journal;
pub mod file;
pub mod follow;
pub mod forget;
pub mod fork;
pub mod inspect;
mod journal;
mod links;
mod maintenance;
pub mod membership;
pub mod metrics;
mod name;
pub mod open;
pub mod orders;
pub mod orphan;
pub mod owner;
pub mod paths;
mod random;
pub mod reason;
mod records;
pub mod seal;
pub mod settings;
mod status;
mod sys;
mod ups;

pub use config::{JournalConfig, MulticastOptions, NewestClaim, ReplicaOrigin};
pub use disk_demand::DiskDemand;
pub use error::{
    JournalCreateError, JournalDeleteError, JournalGrowError, JournalNotClosed, JournalOpenError,
};
pub use events::JournalEvent;
pub use fenced_journal::{FencedJournal, FencedJournalError};
pub use follow::JournalFollower;
pub use fork::ForkMark;
pub use inspect::JournalInspector;
pub use journal::Journal;
pub use membership::{Membership, MembershipChangeError};
pub use netram_discover::{ClusterFile, ClusterFileError};
pub use netram_ups::{UpsSource, UpsSourceError};
pub use open::{GrowReport, JournalRecovery, OpenCheck, claim_note};
pub use orphan::OrphanJournal;
pub use paths::{JournalInit, JournalLayout, JournalLock, JournalPaths, LogBlocks};
pub use reason::{LinkFailure, QuorumError, UncountedReason, UnreachableLenders};
pub use settings::{JournalSettings, SettingsError, SettingsFile};
pub use status::JournalStatus;
