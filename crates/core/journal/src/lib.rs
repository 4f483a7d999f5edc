//! A journal whose newest bytes are durable in other machines' memory before the local disk has them.
//!
//! [`Journal::create`] makes a journal directory, [`Journal::open`] recovers it and starts a reign, and
//! [`netram_proto::port::Log`] is what one does with it: append, wait, read, trim.
//!
//! The decisions are `netram-proto`'s ([`netram_proto::journal::Writer`], [`netram_proto::journal::Recovery`]); this
//! crate moves bytes between a ring in memory, sockets and files.
//!
//! | module | idea |
//! |---|---|
//! | [`config`] | what a journal is opened with |
//! | [`place`] | where a journal's files are, their creation and their lock |
//! | [`file`] | a real file as `proto` sees one |
//! | `sys` | the ring: one mapping seen twice, so that no record is ever cut (the crate's only unsafe) |
//! | [`seal`] | records are sealed before they leave, so that a lender never sees plaintext |
//! | `append` | a record is made where it will stay |
//! | `core` | the state under the journal's one lock: machine, ring, links |
//! | `waiting` | how commits wait: a leader polls the links, followers watch, the disk has a vote |
//! | `disk` | the thread that writes the ring to the log and syncs |
//! | `keeper` | the thread that connects lenders, keeps time and stores views |
//! | [`open`] | recovery, from the lock to the first append |
//! | [`reason`] | why a lender does not count |
//! | `copy` | what whoever feeds a copy elsewhere is told |
//! | [`fork`] | a process is told from its children |
//! | [`follow`] | a journal that is kept for a writer elsewhere |
//! | [`left`] | what an earlier process of a shared region's node left: opened to be offered to the server |
//! | [`remains`] | what a dead node left at its members: read by the server |
//! | `delete` | the files of a journal that is of no use any more |
//! | [`over`] | what is deleted: its lenders are told, also later |
//! | [`inspect`] | looking at a journal without opening it for writing |

mod append;
pub mod config;
mod copy;
mod core;
mod delete;
mod disk;
pub mod error;
pub mod file;
pub mod follow;
pub mod fork;
pub mod inspect;
mod journal;
mod keeper;
pub mod left;
mod links;
pub mod open;
pub mod over;
pub mod place;
pub mod reason;
mod records;
pub mod remains;
pub mod seal;
mod sys;
mod waiting;

pub use config::{JournalConfig, Multicast, NewestClaim, OfReplica};
pub use error::{CreateError, DeleteError, GrowError, NotClosed, OpenError};
pub use follow::{Follower, Parts};
pub use fork::ForkMark;
pub use inspect::Inspect;
pub use journal::{Journal, JournalStatus};
pub use left::Left;
pub use open::{Check, Grown, Recovered, claim_note};
pub use place::{Layout, Lock, Place};
pub use reason::{Away, AwayLenders, Reason, Uncounted};
pub use remains::{Remains, RemainsError};
