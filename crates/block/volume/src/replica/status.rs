//! How a volume's data lender stands, as the volume's status tells.

use serde::{Deserialize, Serialize};

/// How the data lender stands, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataLenderStatus {
    /// Where it is.
    pub address: String,
    /// Whether it is connected, and has answered.
    pub connected: bool,
    /// Members keep what its copy lacks, and views count only when it has them.
    pub in_service: bool,
    /// What it last said of its copy.
    pub condition: Option<String>,
    /// Its log is durable below this.
    pub flushed: u64,
    /// Its image has everything below this.
    pub applied: u64,
    /// Bytes of the log that are on this disk and not on its.
    pub lag_bytes: u64,
    /// Blocks that it has to be sent because the journal no longer has their records.
    pub dirty_blocks: u64,
    /// A resync under way.
    pub resync: Option<ResyncStatus>,
    /// Resyncs that ended since the volume was opened.
    pub resyncs: u64,
    /// Blocks that were sent in them.
    pub resync_sent_blocks: u64,
    /// What is wrong.
    pub trouble: Option<String>,
    /// That is for the operator to decide: the copy has what this volume has not.
    #[serde(default)]
    pub undecided: bool,
}

/// How far a resync is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResyncStatus {
    /// Blocks sent, or found equal.
    pub done_blocks: u64,
    /// Blocks in all.
    pub total_blocks: u64,
    /// Since when.
    pub seconds: u64,
    /// Blocks a second.
    pub blocks_a_second: u64,
}
