//! Configuration of a [`ReplicaSource`](super::ReplicaSource), and the steps that it asks of its driver.

use alloc::vec::Vec;

use super::ResyncScope;
use crate::message::{ReplicaIdentity, ReplicaMessage};
use netram_proto::id::Lsn;
use netram_proto::time::Nanos;
use netram_proto::wire::FrameHeader;

/// Timeouts of a source. Safety depends on none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceTiming {
    /// A data lender that owes an answer for this long is out of service until it answers.
    pub detect: Nanos,
    /// The connection is closed when an answer is owed for this long. Longer than `detect`, since the
    /// lender's disk may be slow.
    pub give_up: Nanos,
    /// Delay between attempts to reach the data lender.
    pub retry: Nanos,
    /// Delay before blocks that are still dirty after a resync are tried again, such as blocks damaged on
    /// both sides.
    pub repair: Nanos,
}

impl Default for SourceTiming {
    fn default() -> SourceTiming {
        SourceTiming {
            detect: Nanos::from_ms(500),
            give_up: Nanos::from_ms(20_000),
            retry: Nanos::from_ms(1000),
            repair: Nanos::from_ms(600_000),
        }
    }
}

/// Configuration of a [`ReplicaSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Volume and journal.
    pub identity: ReplicaIdentity,
    /// Key that encrypts the journal's records; empty if they are not encrypted.
    pub key: Vec<u8>,
    /// The same key, wrapped for a restore; empty if there is no recovery key.
    pub wrapped_key: Vec<u8>,
    /// Capacity of the log in bytes.
    pub capacity: u64,
    /// Size of a member's window in bytes.
    pub window_bytes: u64,
    /// Timeouts.
    pub timing: SourceTiming,
}

/// Next step of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Send this message.
    Send(ReplicaMessage),
    /// Send this header with `bytes` of the local log from `from` as its body. They are stable. If some of
    /// them have been trimmed, send nothing and call
    /// [`ReplicaSource::on_trimmed`](super::ReplicaSource::on_trimmed).
    Ship {
        /// Header of the frame.
        header: FrameHeader,
        /// LSN of the first byte.
        from: Lsn,
        /// Number of bytes.
        bytes: usize,
    },
    /// Take the log's head, then fix the set of blocks for [`SourceAction::Choose`]; then call
    /// [`ReplicaSource::on_begun`](super::ReplicaSource::on_begun). Blocks that become dirty afterwards
    /// belong to the next set.
    Begin {
        /// Blocks to include.
        scope: ResyncScope,
        /// LSN at which the replica's log ended when it was whole. With `ResyncScope::Dirty` the dirty map
        /// must have every change since.
        since: Option<Lsn>,
    },
    /// While blocks were sent, the log lost records that the replica lacks: take its head now, then call
    /// [`ReplicaSource::on_moved`](super::ReplicaSource::on_moved). The dirty map has their blocks if it is
    /// complete since `since`.
    Move {
        /// The replica has every record below this.
        since: Lsn,
    },
    /// Choose the next blocks and then take the log's head; then call
    /// [`ReplicaSource::on_chosen`](super::ReplicaSource::on_chosen).
    Choose {
        /// Maximum number of blocks.
        max: usize,
        /// Zero: choose from the fixed set. A higher number than last time: start again with the blocks that
        /// became dirty since they were last chosen.
        pass: u32,
    },
    /// Compute digests of blocks as the volume has them now; then call
    /// [`ReplicaSource::on_digested`](super::ReplicaSource::on_digested).
    Digest {
        /// Number of the first block.
        first: u64,
        /// Number of blocks; fewer at the volume's end.
        count: usize,
    },
    /// Read these blocks as the volume has them now, stages and image; then call
    /// [`ReplicaSource::on_read`](super::ReplicaSource::on_read).
    Read(Vec<u64>),
    /// The replica is whole: durably forget the set that [`SourceAction::Begin`] fixed; then call
    /// [`ReplicaSource::on_cleared`](super::ReplicaSource::on_cleared).
    Clear,
    /// These blocks of the replica fail their checksums: durably mark them dirty; then call
    /// [`ReplicaSource::on_marked`](super::ReplicaSource::on_marked).
    Mark(Vec<u64>),
}
