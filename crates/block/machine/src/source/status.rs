//! What an operator is told of a data lender.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::RefusalReason;

use super::super::header::ReplicaCondition;
use super::{Phase, ReplicaSource, ResyncScope};

/// Why the replica does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaTrouble {
    /// The data lender cannot be reached, or does not answer.
    Unreachable,
    /// It refuses.
    Refused(RefusalReason),
    /// Its disk failed, with this error number.
    DiskFailed(u64),
    /// It has no room for a copy of this size within its quota.
    OverQuota {
        /// Bytes that the copy may come to take.
        asked: u64,
        /// Bytes that all copies may.
        quota: u64,
    },
    /// A newer client claimed the replica: this volume must not be used any more.
    Fenced(Epoch),
    /// The replica has more than this volume ever had: this may be an old copy of it. Nothing is overwritten
    /// without the operator's word.
    Ahead {
        /// Where its log ends.
        theirs: Lsn,
        /// Where ours does.
        ours: Lsn,
    },
    /// The replica's log is of another history from here on. As above.
    Diverged(Lsn),
}

impl core::fmt::Display for ReplicaTrouble {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReplicaTrouble::Unreachable => out.write_str("the data lender cannot be reached"),
            ReplicaTrouble::Refused(RefusalReason::NoReplica) => out.write_str(
                "this lender keeps no replica of the volume: start it with --data, or name another",
            ),
            ReplicaTrouble::Refused(RefusalReason::DataElsewhere) => out.write_str(
                "this lender takes data sessions at another address, with a key of their own: name that address (its --data-listen) and the key (`data-lender-key-file`, NETRAM_DATA_LENDER_KEY_FILE)",
            ),
            ReplicaTrouble::Refused(refusal) => write!(out, "the data lender refuses: {refusal:?}"),
            ReplicaTrouble::DiskFailed(28) => out.write_str("the data lender's disk is full"),
            ReplicaTrouble::DiskFailed(errno) => {
                write!(
                    out,
                    "the data lender's disk failed (operating system error {errno})"
                )
            }
            ReplicaTrouble::OverQuota { asked, quota } => write!(
                out,
                "the data lender's quota for all copies, {quota} bytes, has no room for this one of {asked}: raise its --data-quota, or remove copies there that nobody needs"
            ),
            ReplicaTrouble::Fenced(epoch) => write!(
                out,
                "the volume was restored or taken over elsewhere in epoch {epoch}: stop using this copy"
            ),
            ReplicaTrouble::Ahead { theirs, ours } => write!(
                out,
                "the replica has the log up to LSN {theirs}, this volume only up to {ours}: this may be an old copy. If it is the right one, overwrite the replica with `netram disk resync --whole`"
            ),
            ReplicaTrouble::Diverged(at) => write!(
                out,
                "the replica has another history from LSN {at} on. If this volume is the right one, overwrite the replica with `netram disk resync --whole`"
            ),
        }
    }
}

/// How far a resync is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncProgress {
    /// Which blocks it is about.
    pub scope: ResyncScope,
    /// Blocks sent, or found equal.
    pub done: u64,
    /// Blocks in all, as far as known at the beginning.
    pub total: u64,
}

/// How a source stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// Connected, and the replica answered.
    pub connected: bool,
    /// Members keep what the replica lacks, and views wait for it.
    pub in_service: bool,
    /// What it last said of itself.
    pub condition: Option<ReplicaCondition>,
    /// What it has is of another history than ours: none of it may be used here.
    pub foreign: bool,
    /// Its log is durable below this.
    pub flushed: Lsn,
    /// Its image has everything below this.
    pub applied: Lsn,
    /// Bytes of the log that are on the client's disk and not on its.
    pub lag: u64,
    /// A resync under way.
    pub resync: Option<ResyncProgress>,
    /// What is wrong.
    pub trouble: Option<ReplicaTrouble>,
}

impl ReplicaSource {
    /// How it stands.
    pub fn status(&self) -> SourceStatus {
        SourceStatus {
            connected: self.phase == Phase::Up,
            in_service: self.served,
            condition: self.condition,
            foreign: self.foreign,
            flushed: self.flushed,
            applied: self.applied,
            lag: self.stable.since(self.flushed),
            resync: self.resync.as_ref().map(|resync| ResyncProgress {
                scope: resync.scope,
                done: resync.done,
                total: resync.total,
            }),
            trouble: self.trouble,
        }
    }
}
