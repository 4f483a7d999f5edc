//! A server's status, as it travels: JSON of these structures.

use serde::{Deserialize, Serialize};

/// How a region that is served stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
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
