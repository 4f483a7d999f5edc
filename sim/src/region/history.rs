//! True history of a region, for the oracles to compare with.

use std::collections::{BTreeMap, BTreeSet};

use netram_proto::id::JournalId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber, Stamp};

use super::bytes::{self, LOCKS, PayloadBytes};

/// Records that were appended to one journal.
#[derive(Default)]
pub(super) struct NodeHistory {
    pub(super) node: Option<NodeId>,
    pub(super) records: Vec<PayloadBytes>,
    /// Number of acknowledged records.
    pub(super) acked: RecordNumber,
}

#[derive(Default)]
pub(super) struct RegionHistory {
    pub(super) journals: BTreeMap<JournalId, NodeHistory>,
    pub(super) outcomes: BTreeMap<(NodeId, RecordNumber), RecordOutcome>,
    /// Record up to which a dead node's journal was read.
    pub(super) read: BTreeMap<NodeId, RecordNumber>,
    /// Nodes whose unproven records an operator gave up.
    pub(super) excused: BTreeSet<NodeId>,
    /// Journals that were removed before all lenders were told, or without knowing whether they may be.
    pending_forgets: BTreeSet<JournalId>,
    /// The newest acknowledged version of each lock.
    newest: [LockVersion; LOCKS as usize],
    /// Acknowledged records, by the versions that they had read.
    readers: BTreeMap<(LockId, LockVersion), Vec<Stamp>>,
}

impl RegionHistory {
    pub(super) fn begin(&mut self, journal: JournalId) {
        self.journals.insert(journal, NodeHistory::default());
    }

    pub(super) fn assign_node(&mut self, journal: JournalId, node: NodeId) {
        if let Some(truth) = self.journals.get_mut(&journal) {
            truth.node = Some(node);
        }
    }

    pub(super) fn append(&mut self, journal: JournalId, payload: PayloadBytes) {
        if let Some(truth) = self.journals.get_mut(&journal) {
            truth.records.push(payload);
        }
    }

    pub(super) fn node_history(&self, node: NodeId) -> Option<&NodeHistory> {
        self.journals.values().find(|truth| truth.node == Some(node))
    }

    /// Records that a journal's records up to `acked` are acknowledged.
    pub(super) fn acknowledge(&mut self, journal: JournalId, acked: RecordNumber) {
        let Some(truth) = self.journals.get_mut(&journal) else {
            return;
        };
        for payload in &truth.records[truth.acked.0 as usize..acked.0 as usize] {
            let stamp = bytes::stamp(payload);
            for (lock, version) in &stamp.written {
                let newest = &mut self.newest[lock.0 as usize];
                *newest = (*newest).max(*version);
            }
            for read in &stamp.read {
                self.readers.entry(*read).or_default().push(stamp.clone());
            }
        }
        truth.acked = acked;
    }

    /// Acknowledged records that had read this version of a lock.
    pub(super) fn readers(&self, lock: LockId, version: LockVersion) -> impl Iterator<Item = &Stamp> {
        let readers = self.readers.get(&(lock, version));
        readers.into_iter().flatten()
    }

    pub(super) fn newest(&self, lock: LockId) -> LockVersion {
        self.newest[lock.0 as usize]
    }

    /// Records that lenders may keep their windows of a journal.
    pub(super) fn keep_windows(&mut self, journal: JournalId) {
        self.pending_forgets.insert(journal);
    }

    /// Whether lenders may keep their windows of a journal.
    pub(super) fn may_keep_windows(&self, journal: JournalId) -> bool {
        self.pending_forgets.contains(&journal)
    }

    pub(super) fn excuse(&mut self, node: NodeId) {
        self.excused.insert(node);
    }
}
