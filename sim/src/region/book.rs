//! What truly happened, for the rules to compare with.

use std::collections::{BTreeMap, BTreeSet};

use netram_proto::id::JournalId;
use netram_shared_machine::message::Fate;
use netram_shared_machine::{LockId, NodeId, Number, Stamp, Version};

use super::bytes::{self, LOCKS, P};

/// What was appended to one journal.
#[derive(Default)]
pub(super) struct Truth {
    pub(super) node: Option<NodeId>,
    pub(super) records: Vec<P>,
    /// So many were acknowledged.
    pub(super) acked: Number,
}

#[derive(Default)]
pub(super) struct Book {
    pub(super) journals: BTreeMap<JournalId, Truth>,
    pub(super) fates: BTreeMap<(NodeId, Number), Fate>,
    /// Up to which record a dead node's journal was read.
    pub(super) read: BTreeMap<NodeId, Number>,
    /// Nodes of which an operator gave up what could not be proven.
    pub(super) excused: BTreeSet<NodeId>,
    /// The newest version of each lock that was acknowledged.
    newest: [Version; LOCKS as usize],
    /// Acknowledged records, by what they had read.
    readers: BTreeMap<(LockId, Version), Vec<Stamp>>,
}

impl Book {
    pub(super) fn begin(&mut self, journal: JournalId) {
        self.journals.insert(journal, Truth::default());
    }

    pub(super) fn own(&mut self, journal: JournalId, node: NodeId) {
        if let Some(truth) = self.journals.get_mut(&journal) {
            truth.node = Some(node);
        }
    }

    pub(super) fn append(&mut self, journal: JournalId, payload: P) {
        if let Some(truth) = self.journals.get_mut(&journal) {
            truth.records.push(payload);
        }
    }

    pub(super) fn of(&self, node: NodeId) -> Option<&Truth> {
        self.journals.values().find(|truth| truth.node == Some(node))
    }

    /// So many of a journal's records are acknowledged.
    pub(super) fn acknowledge(&mut self, journal: JournalId, acked: Number) {
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
    pub(super) fn readers(&self, lock: LockId, version: Version) -> impl Iterator<Item = &Stamp> {
        let readers = self.readers.get(&(lock, version));
        readers.into_iter().flatten()
    }

    pub(super) fn newest(&self, lock: LockId) -> Version {
        self.newest[lock.0 as usize]
    }

    pub(super) fn excuse(&mut self, node: NodeId) {
        self.excused.insert(node);
    }
}
