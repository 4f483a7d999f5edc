//! The status of a server, as JSON of these structures.

use serde::{Deserialize, Serialize};

use crate::limit::LOSSES_REPORTED_MAX;
use crate::server::table::RegionTable;

/// Status of a served region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerReport {
    /// The region, as its table has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<RegionReport>,
    /// Addresses on which nodes connect.
    pub addresses: Vec<String>,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// Time for which a node may be silent, in milliseconds.
    pub lease_ms: u64,
    /// Position of the newest record in the server's order.
    pub position: u64,
    /// Position of the newest durable record.
    pub kept: u64,
    /// Number of links that are not a node's.
    pub strangers: usize,
    /// Nodes that are not gone.
    pub nodes: Vec<NodeReport>,
    /// Locks that nodes wait for, at most [`LOCKS_REPORTED_MAX`](crate::limit::LOCKS_REPORTED_MAX).
    pub waited_for: Vec<LockReport>,
    /// Number of all such locks.
    pub waited_for_count: usize,
    /// Records that wait for others that have not come, in words.
    pub missing: Vec<String>,
    /// Whether names and addresses are left out, because the report would be too long.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
}

impl ServerReport {
    /// Removes the texts that peers can make long. The rest is far below
    /// [`REPLY_BYTES_MAX`](crate::limit::REPLY_BYTES_MAX), whatever the peers do.
    pub(super) fn shortened(mut self) -> ServerReport {
        for node in &mut self.nodes {
            node.name.clear();
            node.lenders.clear();
            (node.peer, node.why) = (None, None);
            if let Some(stuck) = &mut node.stuck {
                "left out because the status is too long".clone_into(&mut stuck.reason);
                stuck.lenders.clear();
            }
        }
        self.shortened = true;
        self
    }
}

/// A region, as its table has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionReport {
    /// Identity of the region, in hexadecimal digits.
    pub id: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Address at which all nodes map the region; 0: each node chooses.
    pub address: u64,
    /// Number of locks.
    pub locks: usize,
    /// Number of locks that were ever written under.
    pub locks_written: usize,
    /// Number of nodes that are gone.
    pub nodes_gone: u64,
    /// Gone nodes with an accepted loss: the newest, at most [`LOSSES_REPORTED_MAX`].
    pub losses_accepted: Vec<LossReport>,
}

/// A gone node whose acknowledged records may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Its id.
    pub node: u64,
    /// Its last known record.
    pub last: u64,
}

impl RegionReport {
    /// Takes the facts from the table.
    pub fn of(table: &RegionTable) -> RegionReport {
        let lossy = table.gone.iter().rev().filter(|gone| gone.loss_accepted);
        let mut losses_accepted: Vec<LossReport> = lossy
            .take(LOSSES_REPORTED_MAX)
            .map(|gone| LossReport {
                node: gone.id.0,
                last: gone.last.0,
            })
            .collect();
        losses_accepted.reverse();
        RegionReport {
            id: table.region.to_string(),
            bytes: table.bytes,
            address: table.address,
            locks: table.spans.len(),
            locks_written: table.locks_written(),
            nodes_gone: table.counters.gone,
            losses_accepted,
        }
    }
}

/// Status of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its id.
    pub node: u64,
    /// Name that the node gave itself.
    pub name: String,
    /// State of the node.
    pub standing: String,
    /// Address of its link's other end, if it has a link.
    pub peer: Option<String>,
    /// Last merged record.
    pub merged: u64,
    /// Last record whose end in the journal is durable here.
    pub kept: u64,
    /// Identity of its journal.
    #[serde(default)]
    pub journal: String,
    /// LSN where record `kept` ends in the journal.
    #[serde(default)]
    pub lsn: u64,
    /// Members of its journal, as far as durable here.
    #[serde(default)]
    pub lenders: Vec<String>,
    /// Number of records that it is still to be sent; `None`: it has no link.
    pub behind: Option<u64>,
    /// Reason why it is fenced.
    pub why: Option<String>,
    /// Reason why its end cannot be reached.
    pub stuck: Option<StuckReport>,
}

/// A journal that cannot be read to its proven end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckReport {
    /// The reason.
    pub reason: String,
    /// Lenders that must answer.
    pub lenders: Vec<String>,
    /// Number of attempts.
    pub attempts: u32,
    /// Seconds since the first attempt was due.
    pub seconds: u64,
}

/// Status of one lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// Its id.
    pub lock: u32,
    /// Number of nodes that wait for it.
    pub waiting: usize,
    /// Nodes that hold it.
    pub holders: Vec<HolderReport>,
}

/// A node that holds a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// The node's id.
    pub node: u64,
    /// Whether it may write.
    pub exclusive: bool,
}
