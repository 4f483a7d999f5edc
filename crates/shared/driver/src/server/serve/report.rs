//! A server's status, as it travels: JSON of these structures.

use serde::{Deserialize, Serialize};

use crate::limit::LOSSES_REPORTED_MAX;
use crate::server::table::RegionTable;

/// How a region that is served stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerReport {
    /// What is served, as far as its table says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<RegionReport>,
    /// Where nodes come in.
    pub addresses: Vec<String>,
    /// Seconds since the server started.
    pub uptime_s: u64,
    /// How long a node may be silent.
    pub lease_ms: u64,
    /// The newest record's place in the server's order.
    pub position: u64,
    /// The newest that is durable here.
    pub kept: u64,
    /// Links that are not a node's.
    pub strangers: usize,
    /// Nodes that are not gone.
    pub nodes: Vec<NodeReport>,
    /// Locks that somebody waits for, as many as there is room for.
    pub waited_for: Vec<LockReport>,
    /// How many there are.
    pub waited_for_count: usize,
    /// Records that wait for others, which have not come: whose, and for what.
    pub missing: Vec<String>,
    /// Names and addresses are left out: with them it would be longer than what is told.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shortened: bool,
}

impl ServerReport {
    /// The same without what peers can make long. What is left has a bound far below `ANSWER_BYTES_MAX`,
    /// whoever the peers are.
    pub(super) fn shortened(mut self) -> ServerReport {
        for node in &mut self.nodes {
            node.name.clear();
            node.lenders.clear();
            (node.peer, node.why) = (None, None);
            if let Some(stuck) = &mut node.stuck {
                "it is left out of a status that is too long".clone_into(&mut stuck.reason);
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
    /// Which.
    pub id: String,
    /// Its bytes.
    pub bytes: u64,
    /// The address that all nodes map it at; 0: each where it likes.
    pub address: u64,
    /// How many locks it has.
    pub locks: usize,
    /// How many of them were written under.
    pub locks_written: usize,
    /// How many nodes have gone.
    pub nodes_gone: u64,
    /// Those of them of whom a loss was accepted: the newest, as many as there is room for.
    pub losses_accepted: Vec<LossReport>,
}

/// A node that is gone, and whose acknowledged records may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossReport {
    /// Its id.
    pub node: u64,
    /// Its last record that there is.
    pub last: u64,
}

impl RegionReport {
    /// What the table says.
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

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its id.
    pub node: u64,
    /// What it calls itself.
    pub name: String,
    /// Where it is in its life.
    pub standing: String,
    /// The other end of its link, if it has one.
    pub peer: Option<String>,
    /// Its last record that was merged.
    pub merged: u64,
    /// Its last record whose place in its journal is durable here.
    pub kept: u64,
    /// Its journal.
    #[serde(default)]
    pub journal: String,
    /// Where the last record that is kept ends there.
    #[serde(default)]
    pub lsn: u64,
    /// The members of its journal, as far as is durable here.
    #[serde(default)]
    pub lenders: Vec<String>,
    /// Records that it is still to be sent; none without a link.
    pub behind: Option<u64>,
    /// Why it is fenced.
    pub why: Option<String>,
    /// Why its journal cannot be read.
    pub stuck: Option<StuckReport>,
}

/// A journal that cannot be read to its proven end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckReport {
    /// Why.
    pub reason: String,
    /// The lenders that must answer.
    pub lenders: Vec<String>,
    /// How often it was tried.
    pub attempts: u32,
    /// Since when.
    pub seconds: u64,
}

/// One lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// Its id.
    pub lock: u32,
    /// Nodes that wait for it.
    pub waiting: usize,
    /// Who holds it.
    pub holders: Vec<HolderReport>,
}

/// Who holds a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderReport {
    /// The node's id.
    pub node: u64,
    /// Whether it may write.
    pub exclusive: bool,
}
