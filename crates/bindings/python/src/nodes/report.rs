//! What a node tells of itself.

use netram_shared::node::{DirectCounts, RecordProgress};
use pyo3::prelude::*;

/// How far a node's own records have come: the number of the last of each kind.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct NodeProgress {
    /// In its journal.
    appended: u64,
    /// Safe, whatever dies.
    acked: u64,
    /// On the server's disk.
    kept: u64,
}

impl NodeProgress {
    pub(super) fn of(from: RecordProgress) -> NodeProgress {
        NodeProgress {
            appended: from.appended.0,
            acked: from.acked.0,
            kept: from.durable.0,
        }
    }
}

#[pymethods]
impl NodeProgress {
    fn __repr__(&self) -> String {
        let NodeProgress {
            appended,
            acked,
            kept,
        } = self;
        format!("<netram.shared.NodeProgress: {appended} appended, {acked} acked, {kept} kept>")
    }
}

/// What became of records that went, or came, straight from node to node.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct NodeStraight {
    /// Of others: here before the server's stream brought them.
    taken: u64,
    /// Of others: out of place, or late.
    forgotten: u64,
    /// Own ones that were multicast.
    cast: u64,
    /// Own ones over a link, once for each peer.
    linked: u64,
    /// Own ones that a peer was not sent, because it reads too slowly.
    dropped: u64,
    /// Nodes that are sent records.
    peers: usize,
}

impl NodeStraight {
    pub(super) fn of(from: DirectCounts) -> NodeStraight {
        NodeStraight {
            taken: from.applied,
            forgotten: from.ignored,
            cast: from.multicast,
            linked: from.unicast,
            dropped: from.dropped,
            peers: from.peers,
        }
    }
}

#[pymethods]
impl NodeStraight {
    fn __repr__(&self) -> String {
        format!(
            "<netram.shared.NodeStraight: {} peers, {} sent, {} taken>",
            self.peers,
            self.cast + self.linked,
            self.taken
        )
    }
}
