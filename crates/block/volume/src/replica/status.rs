//! Status of a volume's data lender, as part of the volume's status.

use netram_block_machine::{ReplicaCondition, SourceStatus};
use serde::{Deserialize, Serialize};

/// Status of the data lender.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLenderStatus {
    /// Address of the data lender.
    pub address: String,
    /// Whether it is connected and has answered.
    pub connected: bool,
    /// Whether members keep what the copy lacks, and views count only once the data lender has them.
    pub in_service: bool,
    /// Last reported condition of the copy.
    pub condition: Option<String>,
    /// LSN below which the copy's log is durable.
    pub flushed: u64,
    /// LSN below which the copy's image has every record.
    pub applied: u64,
    /// Bytes of log that are on this disk but not on the data lender's.
    pub lag_bytes: u64,
    /// Number of blocks that the copy must be sent because the journal no longer has their records.
    pub dirty_blocks: u64,
    /// Resync under way.
    pub resync: Option<ResyncStatus>,
    /// Number of resyncs that have ended since the volume was opened.
    pub resyncs: u64,
    /// Number of blocks sent in them.
    pub resync_sent_blocks: u64,
    /// Why the copy does not follow, if it does not.
    pub trouble: Option<String>,
    /// Whether the operator must decide, because the copy has records that this volume lacks.
    #[serde(default)]
    pub undecided: bool,
    /// Whether the volume has no recovery key, without which the copy can be restored nowhere else.
    #[serde(default)]
    pub no_recovery_key: bool,
}

/// Progress of a resync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncStatus {
    /// Number of blocks sent or found equal.
    pub done_blocks: u64,
    /// Number of blocks in all.
    pub total_blocks: u64,
    /// Seconds since the resync began.
    pub seconds: u64,
    /// Blocks per second.
    pub blocks_a_second: u64,
}

/// Whether the copy lacks nothing below the end of its log.
pub(super) fn is_whole(status: &SourceStatus) -> bool {
    status.connected && status.resync.is_none() && status.condition == Some(ReplicaCondition::Following)
}

/// Whether the copy has every block that it was ever sent, except those in the dirty map.
pub(super) fn has_what_was_sent(status: &SourceStatus) -> bool {
    let has_any = matches!(
        status.condition,
        Some(ReplicaCondition::Following | ReplicaCondition::Inconsistent { since: Some(_) })
    );
    has_any && !status.foreign
}
