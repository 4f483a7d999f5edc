//! Progress and counters of a node.

use netram_shared::node::{DirectCounts, RecordProgress};
use pyo3::prelude::*;

/// Progress of a node's own records: the number of the last record of each kind.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct NodeProgress {
    /// Last record in its journal.
    appended: u64,
    /// Last record that survives the loss of any machine that the commit rule allows for.
    acked: u64,
    /// Last record on the server's disk.
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

/// Counters of records sent and received directly between nodes.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct NodeStraight {
    /// Records of other nodes that arrived before the server's stream brought them.
    taken: u64,
    /// Records of other nodes that were dropped as out of order or late.
    forgotten: u64,
    /// Own records that were multicast.
    cast: u64,
    /// Own records sent over a link, counted once per peer.
    linked: u64,
    /// Own records that were not sent to a peer because it reads too slowly.
    dropped: u64,
    /// Nodes to which records are sent.
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
