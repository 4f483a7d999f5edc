//! A volume kept twice: on its client's disk, and by a *data lender* on its own.
//!
//! What the data lender keeps is the *replica*: a volume's directory like the client's, whose log has the
//! same bytes at the same LSNs. The client sends what its own log has stable; the replica checks it as any
//! log is checked, syncs, and answers `flushed`.
//!
//! | part | decides |
//! |---|---|
//! | [`ReplicaSource`] | the client's side: what to send next; whether the data lender is *in service*; when blocks must be sent anew |
//! | [`Replica`] | the data lender's side: which frames it takes, what they make of its state, whom it obeys |
//! | [`ReplicaHeader`] | what the replica's file says of it, in two slots |
//! | [`message`] | the bodies of the frames between them |
//!
//! Both are values: frames and the time go in, things to do come out. The driver reads and writes files.
//! Neither knows what a volume is made of, beyond blocks of [`BLOCK_BYTES`] and a log.
//!
//! **In service** means: the replica is whole, it has the newest view, it answers, and it is at most half a
//! window behind. Then members keep what it lacks, and a view counts only when it has it too
//! ([`netram_proto::journal::JournalWriter::on_replica_ack`]). Out of service the journal goes on as if there
//! were no data lender; nothing ever waits for it longer than `detect`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod header;
pub mod limit;
pub mod message;
mod source;
mod target;

pub use header::{ReplicaCondition, ReplicaHeader, ReplicaHeaderError};
pub use message::{FollowReply, ReplicaDescription, ReplicaIdentity, ReplicaMessage};
pub use source::{
    ReplicaSource, ReplicaTrouble, ResyncProgress, ResyncScope, SourceAction, SourceConfig, SourceStatus,
    SourceTiming,
};
pub use target::{Replica, ReplicaAction, UnflushedRecords};

/// Bytes of a block, as the volume has them.
pub const BLOCK_BYTES: usize = 4096;
