//! The server's disk. It keeps the order of writes: a crash leaves everything synced and some of the rest,
//! never a later write without an earlier one. It is one log. Other worlds ([`crate::scenario`]) model that
//! log by sectors.

use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::server::{DurableFact, DurableNode, NodeState, RegionState};
use netram_shared_machine::{GrantNumber, LockVersion, NodeId, Position, RecordNumber};

use super::bytes::{self, PayloadBytes, WORDS};
use super::kernel::RegionKernel;

/// A write on its way to the disk.
#[derive(Clone, Debug)]
pub(super) enum QueuedWrite {
    Fact(u64, DurableFact),
    Record(ServerRecord),
}

/// A record in the server's order.
#[derive(Clone, Debug)]
pub(super) struct ServerRecord {
    pub(super) position: Position,
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    pub(super) end: Option<ChainPoint>,
    pub(super) payload: PayloadBytes,
}

/// Durable state of the server.
pub(super) struct ServerDisk {
    pub(super) table: RegionState,
    pub(super) region: Vec<u64>,
    /// Every record that was ever stored.
    pub(super) log: Vec<ServerRecord>,
}

impl ServerDisk {
    /// The disk of a region without nodes.
    pub(super) fn new() -> ServerDisk {
        let versions = bytes::locks().map(|lock| (lock, LockVersion(0))).collect();
        ServerDisk {
            table: RegionState {
                versions,
                ceiling: GrantNumber(0),
                ..RegionState::default()
            },
            region: vec![0; WORDS],
            log: Vec::new(),
        }
    }

    /// Durable state of a node.
    pub(super) fn node(&self, node: NodeId) -> Option<&DurableNode> {
        self.table.nodes.get(&node)
    }

    /// Whether it is durable that a node is gone.
    pub(super) fn is_gone(&self, node: NodeId) -> bool {
        self.node(node).is_some_and(|row| row.state == NodeState::Gone)
    }

    /// Views of the nodes that are not gone.
    pub(super) fn views(&self) -> impl Iterator<Item = &View> {
        let rows = self.table.nodes.values();
        rows.filter(|row| row.state != NodeState::Gone)
            .filter_map(|row| row.journal.as_ref().map(|journal| &journal.view))
    }

    /// Stores a fact.
    pub(super) fn store_fact(&mut self, kernel: &mut RegionKernel, fact: DurableFact) {
        let table = &mut self.table;
        match fact {
            DurableFact::Joined { node, journal, .. } => {
                let row = DurableNode {
                    state: NodeState::Live,
                    id: journal.view.journal,
                    journal: Some(journal),
                    number: RecordNumber(0),
                };
                table.nodes.insert(node, row);
                table.last_node = table.last_node.max(node);
            }
            DurableFact::Viewed { node, view } => {
                let row = table.nodes.get_mut(&node);
                if let Some(journal) = row.and_then(|row| row.journal.as_mut()) {
                    journal.view = view;
                    kernel.hit("region: views stored at the server");
                }
            }
            DurableFact::Fencing { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.state = NodeState::Fencing;
                }
            }
            DurableFact::Gone { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.state = NodeState::Gone;
                }
            }
            DurableFact::Forgotten { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.journal = None;
                }
                kernel.hit("region: nodes that are gone, and all lenders know");
            }
            DurableFact::Ceiling(grant) => table.ceiling = grant,
        }
    }

    /// Stores a record.
    pub(super) fn store_record(&mut self, merged: ServerRecord) {
        assert_eq!(merged.position, self.table.position.next());
        self.table.position = merged.position;
        for (lock, version) in bytes::stamp(&merged.payload).written {
            self.table.versions[lock.0 as usize] = (lock, version);
        }
        if let Some(row) = self.table.nodes.get_mut(&merged.node) {
            row.number = merged.number;
            if let (Some(end), Some(journal)) = (merged.end, &mut row.journal) {
                journal.kept = merged.number;
                journal.end = end;
            }
        }
        bytes::apply(&merged.payload, &mut self.region);
        self.log.push(merged);
    }
}
