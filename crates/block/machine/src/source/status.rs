//! Status of a data lender for the operator.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::wire::{ClientLimitRefusal, RefusalReason};

use super::super::header::ReplicaCondition;
use super::{Phase, ReplicaSource, ResyncScope};

/// Why the replica does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaTrouble {
    /// The data lender cannot be reached, or does not answer.
    Unreachable,
    /// The data lender refuses the session.
    Refused(RefusalReason),
    /// The data lender's disk failed, with this OS error number.
    DiskFailed(u64),
    /// The data lender's quota has no room for a copy of this size.
    OverQuota {
        /// Maximum bytes that this copy may take.
        asked: u64,
        /// Quota for all copies in bytes.
        quota: u64,
    },
    /// The name of this client's key may not have the copy.
    OverClientLimit(ClientLimitRefusal),
    /// A newer client claimed the replica: this volume must not be used any more.
    Fenced(Epoch),
    /// The replica has records that this volume never had, so the volume may be an old copy. The replica is
    /// not overwritten until the operator asks for it.
    Ahead {
        /// End of the replica's log.
        theirs: Lsn,
        /// End of this volume's log.
        ours: Lsn,
    },
    /// The replica's log belongs to another history from this LSN on. It is not overwritten until the
    /// operator asks for it.
    Diverged(Lsn),
}

impl core::fmt::Display for ReplicaTrouble {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ReplicaTrouble::Unreachable => out.write_str("the data lender cannot be reached"),
            ReplicaTrouble::Refused(RefusalReason::NoReplica) => out.write_str(
                "this lender keeps no copy of the volume: start the lender with --data, or configure another data lender",
            ),
            ReplicaTrouble::Refused(RefusalReason::DataElsewhere) => out.write_str(
                "this lender accepts data sessions only at another address and with a separate key: configure that address (the lender's --data-listen) and the key (`data-lender-key-file`, NETRAM_DATA_LENDER_KEY_FILE)",
            ),
            ReplicaTrouble::Refused(RefusalReason::NotOwner) => out.write_str(
                "the data lender does not take this machine for the volume's owner: run the same release on both machines",
            ),
            ReplicaTrouble::Refused(refusal) => write!(out, "the data lender refused the session: {refusal:?}"),
            ReplicaTrouble::DiskFailed(28) => out.write_str("the data lender's disk is full"),
            ReplicaTrouble::DiskFailed(errno) => {
                write!(
                    out,
                    "the data lender's disk failed (OS error {errno})"
                )
            }
            ReplicaTrouble::OverQuota { asked, quota } => write!(
                out,
                "the data lender's quota of {quota} bytes has no room for this copy of {asked} bytes: raise its --data-quota, or remove unneeded copies there"
            ),
            ReplicaTrouble::OverClientLimit(refusal) => write!(out, "the data lender refuses: {refusal}"),
            ReplicaTrouble::Fenced(epoch) => write!(
                out,
                "the volume was restored or taken over elsewhere in epoch {epoch}: stop using this copy"
            ),
            ReplicaTrouble::Ahead { theirs, ours } => write!(
                out,
                "the data lender's copy has the log up to LSN {theirs}, this volume only up to {ours}: this volume may be an old copy. If it is the right one, overwrite the data lender's copy with `netram volume resync --whole`"
            ),
            ReplicaTrouble::Diverged(at) => write!(
                out,
                "the data lender's copy has a different history from LSN {at} on. If this volume is the right one, overwrite the data lender's copy with `netram volume resync --whole`"
            ),
        }
    }
}

/// Progress of a resync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncProgress {
    /// Blocks that the resync sends.
    pub scope: ResyncScope,
    /// Number of blocks sent or found equal.
    pub done: u64,
    /// Number of blocks in all, as estimated at the start.
    pub total: u64,
}

/// Status of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceStatus {
    /// Whether the data lender is connected and has described its replica.
    pub connected: bool,
    /// Whether members keep what the replica lacks, and views wait for it.
    pub in_service: bool,
    /// Last reported condition of the replica.
    pub condition: Option<ReplicaCondition>,
    /// Whether the replica's contents belong to another history than ours. None of its blocks may be used
    /// here.
    pub foreign: bool,
    /// LSN below which the replica's log is durable.
    pub flushed: Lsn,
    /// LSN below which the replica's image has everything.
    pub applied: Lsn,
    /// Bytes of log that are on the client's disk but not on the data lender's.
    pub lag: u64,
    /// Progress of the resync under way.
    pub resync: Option<ResyncProgress>,
    /// Why the replica does not follow.
    pub trouble: Option<ReplicaTrouble>,
}

impl ReplicaSource {
    /// Current status.
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
