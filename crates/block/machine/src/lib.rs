//! Internal to netram: programs use the crate `netram`.
//!
//! A volume kept twice: on its client's disk, and by a *data lender* on its own disk.
//!
//! The data lender's copy is the *replica*: a directory like the client's, whose log has the same bytes at
//! the same LSNs. The client sends records once its own log has them stable. The replica checks each record,
//! syncs, and answers `Flushed`.
//!
//! | part | decides |
//! |---|---|
//! | [`ReplicaSource`] | the client's side: what to send next, whether the data lender is *in service*, when blocks replace the log |
//! | [`Replica`] | the data lender's side: which frames it accepts, how they change its state, which writer it obeys |
//! | [`ReplicaHeader`] | the durable description of a replica, stored in two slots of one file |
//! | [`message`] | the bodies of the frames between them |
//!
//! Both are values: frames and the time go in, actions come out. The driver reads and writes files. Neither
//! knows more of a volume than blocks of [`BLOCK_BYTES`] and a log.
//!
//! **In service** means: the replica is whole, has the newest view, answers, and lags by at most half a
//! window. While it is in service, members keep every record that it lacks, and a view counts only once the
//! replica has it ([`netram_proto::journal::JournalWriter::on_replica_ack`]). Out of service, the journal
//! goes on without it: nothing waits for a data lender longer than `detect`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod header;
pub mod limit;
pub mod message;
mod replica_action;
mod source;
mod target;

pub use header::{ReplicaCondition, ReplicaHeader, ReplicaHeaderError};
pub use message::{FollowReply, ReplicaDescription, ReplicaIdentity, ReplicaMessage};
pub use replica_action::{ReplicaAction, UnflushedRecords};
pub use source::{
    ReplicaSource, ReplicaTrouble, ResyncProgress, ResyncScope, SourceAction, SourceConfig, SourceStatus,
    SourceTiming,
};
pub use target::Replica;

/// Bytes of a volume's block.
pub const BLOCK_BYTES: usize = 4096;
