//! The rules of `docs/design/shared.md`.

use std::collections::BTreeMap;

use netram_proto::id::JournalId;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::server::NodeState;
use netram_shared_machine::{LockId, LockVersion, MergeQueue, NodeId, QueuedRecord, RecordNumber};

use super::World;
use super::bytes::{self, PayloadBytes, WORDS};

/// A rule of the list, by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegionRule {
    /// 1: applied versions neither skip nor go back.
    Applied,
    /// 2: acknowledged records survive.
    Survives,
    /// 3: versions under a lock are 1, 2, 3 ...
    Versions,
    /// 4: no record of a node follows its end.
    AfterEnd,
    /// 5: a node with a lock has applied the lock's version.
    Granted,
    /// 6: at rest all copies are equal.
    Equal,
    /// 7: any order that the stamps allow leads to the same region.
    AnyOrder,
    /// 8: readers see complete old states.
    Readers,
    /// 9: every acquire ends.
    Ends,
    /// 10: undeclared bytes never change.
    Undeclared,
    /// 11: a reported outcome never changes.
    Outcome,
}

/// State that the rules remember.
#[derive(Default)]
pub(crate) struct RegionHistory {
    pub(crate) outcomes: BTreeMap<(NodeId, RecordNumber), RecordOutcome>,
    /// Journals of nodes.
    pub(crate) known: BTreeMap<NodeId, JournalId>,
    pub(crate) commits: u64,
    pub(crate) gone: u64,
    pub(crate) aborted: u64,
    /// Number of views that nodes learned to be durable.
    pub(crate) views: u64,
    /// Number of nodes that fell behind or left.
    pub(crate) rejoined: u64,
    /// Numbers of hints that were sent and applied.
    pub(crate) hints_sent: u64,
    pub(crate) hints_taken: u64,
    /// Number of nodes fenced for a record under a lock that they did not hold.
    pub(crate) unlocked: u64,
}

impl World {
    pub(super) fn check_always(&mut self) {
        let words = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        for process in words {
            let spans = || bytes::locks().map(bytes::span);
            let declared = |word: &usize| spans().any(|span| span.contains(word));
            let outside = (0..WORDS).filter(|word| !declared(word));
            if outside.into_iter().any(|word| process.region[word] != 0) {
                self.fail(RegionRule::Undeclared, "a word of no span has changed");
            }
        }
    }

    /// Applies another node's record to a node's memory.
    pub(super) fn apply(&mut self, slot: usize, payload: &PayloadBytes) {
        let stamp = bytes::stamp(payload);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        // While pages come, the memory may be ahead of the stream.
        if process.is_whole() {
            for (lock, makes) in &stamp.written {
                let stands = process.region[bytes::span(*lock).start];
                if stands + 1 != makes.0 {
                    self.fail(
                        RegionRule::Applied,
                        &format!("slot {slot}: lock {lock} from {stands} to {makes}"),
                    );
                }
            }
        }
        process.change(&stamp, payload);
        if process.is_whole() {
            self.check_closed(slot);
        }
    }

    /// Checks that the memory shows each record as a whole, with everything that it had read.
    fn check_closed(&self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        for stamp in process.last.iter().flatten() {
            for (lock, version) in stamp.read.iter().chain(&stamp.written) {
                let stands = process.region[bytes::span(*lock).start];
                if stands < version.0 {
                    self.fail(
                        RegionRule::Readers,
                        &format!("slot {slot}: lock {lock} at {stands}, below {version}"),
                    );
                }
            }
        }
    }

    pub(super) fn check_pinned(&self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let own = !process.txns.is_empty();
        if let Some(pinned) = process.pinned.as_ref().filter(|_| !own)
            && *pinned != process.region
        {
            self.fail(
                RegionRule::Readers,
                &format!("slot {slot}: the memory changed under a reader"),
            );
        }
    }

    /// Checks that the memory has everything that was acknowledged under a transaction's locks.
    pub(super) fn check_locks_held(&self, slot: usize, txn: TxnId) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        // Locks held beyond the lease may be stale: they must not be read any more, and the commit will be
        // refused.
        if !process.node.tokens().leased(self.now) {
            return;
        }
        for held in process.node.tokens().held_locks(txn) {
            let lock = held.lock;
            let stands = LockVersion(process.region[bytes::span(lock).start]);
            // Another transaction of the same node may have written since, but not under this lock.
            let newest = self.newest_acked(lock);
            if stands != held.version || stands < newest {
                let what = format!(
                    "slot {slot}: lock {lock} held at {}, memory at {stands}, acknowledged {newest}",
                    held.version
                );
                self.fail(RegionRule::Granted, &what);
            }
        }
    }

    fn newest_acked(&self, lock: LockId) -> LockVersion {
        let acked = self
            .journals
            .values()
            .flat_map(|journal| &journal.records[..journal.acked]);
        let versions = acked.flat_map(|payload| bytes::stamp(payload).written);
        let versions = versions.filter(|(other, _)| *other == lock);
        versions.map(|(_, version)| version).max().unwrap_or_default()
    }

    /// Checks a record that the server merges.
    pub(super) fn check_merged(&mut self, node: NodeId, number: RecordNumber, payload: &PayloadBytes) {
        let server = self.host().memory();
        for (lock, makes) in bytes::stamp(payload).written {
            let stands = server[bytes::span(lock).start];
            if stands + 1 != makes.0 {
                self.fail(
                    RegionRule::Versions,
                    &format!("lock {lock} from {stands} to {makes}"),
                );
            }
        }
        let standing = self.disk().table.nodes.get(&node).map(|row| row.state);
        if standing == Some(NodeState::Gone) {
            self.fail(
                RegionRule::AfterEnd,
                &format!("record {number} of node {node} comes after its end"),
            );
        }
        self.history.commits += 1;
    }

    /// Checks that a view counts only if the server's disk has it, for reading the journal after a crash of
    /// all else.
    pub(super) fn check_view(&mut self, slot: usize, view: u64) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let rows = self.disk().table.nodes.values();
        let mut journals = rows
            .filter(|row| row.id == process.journal)
            .map(|row| &row.journal);
        // A gone node needs none.
        let stored = journals.find_map(|journal| journal.as_ref());
        if let Some(journal) = stored.filter(|journal| journal.view.version < view) {
            let stored = journal.view.version;
            self.fail(
                RegionRule::Survives,
                &format!("slot {slot}: view {view} counts, and {stored} is durable"),
            );
        }
        self.history.views += u64::from(view > 1);
    }

    /// Checks, when a node's end is durable, that all records that were acknowledged to it are durable, too.
    pub(super) fn check_gone(&mut self, node: NodeId) {
        self.history.gone += 1;
        let has = self
            .disk()
            .table
            .nodes
            .get(&node)
            .map_or(RecordNumber(0), |row| row.number);
        let journals = self.journals.values();
        let mut its = journals.filter(|journal| journal.node == Some(node));
        if let Some(journal) = its.find(|journal| journal.acked as u64 > has.0) {
            let acked = journal.acked;
            self.fail(
                RegionRule::Survives,
                &format!("node {node} had {acked} acknowledged, and {has} count"),
            );
        }
    }

    pub(super) fn check_outcome(&mut self, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
        if fate == RecordOutcome::Open {
            return;
        }
        self.history.aborted += u64::from(fate == RecordOutcome::Aborted);
        let before = self.history.outcomes.insert((node, number), fate);
        if before.is_some_and(|before| before != fate) {
            self.fail(
                RegionRule::Outcome,
                &format!("record {number} of node {node} is {fate:?} now"),
            );
        }
    }

    /// Reason why the world is not at rest; empty if it is.
    pub(super) fn busy_reason(&self) -> String {
        let Some(server) = self.server() else {
            return "no server".into();
        };
        for (node, standing) in server.node_states() {
            if !matches!(standing, NodeState::Live | NodeState::Gone) {
                return format!("node {node} is {standing:?}, missing {:?}", server.missing());
            }
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(process) = &slot.process else {
                return format!("slot {index} has no process");
            };
            if !process.is_whole() || !process.txns.is_empty() || process.pinned.is_some() {
                let (state, txns) = (process.node.state(), &process.txns);
                let journal = self.journals.get(&process.journal);
                let journal = journal.map(|journal| (journal.acked, journal.sealed, journal.few));
                let id = process.node.id();
                let standing = server.node_states().find(|(node, _)| Some(*node) == id);
                let link = process.session;
                return format!(
                    "slot {index}: {state:?}, {standing:?}, {link:?}, {txns:?}, acked, sealed, few {journal:?}"
                );
            }
            if !slot.unknown.is_empty() {
                return format!("slot {index} does not know of {:?}", slot.unknown);
            }
        }
        let live = server
            .node_states()
            .filter(|(_, standing)| *standing == NodeState::Live);
        if live.count() != self.slots.len() {
            return "nodes that have no process".into();
        }
        match self.host().is_idle() && self.hints.is_empty() {
            true => String::new(),
            false => "the disk, or hints".into(),
        }
    }

    pub(super) fn is_quiescent(&mut self) -> bool {
        if !self.busy_reason().is_empty() {
            return false;
        }
        // Lazy nodes are at rest with fewer records.
        for slot in 0..self.slots.len() {
            if let Some(process) = &mut self.slots[slot].process {
                process.node.pull();
            }
            self.run_actions(slot);
        }
        let memory = self.host().memory();
        let mut processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        processes.all(|process| process.region == memory)
    }

    pub(super) fn check_quiescent(&mut self) {
        let disk = self.disk();
        if disk.region != self.host().memory() {
            self.fail(RegionRule::Equal, "the disk's region is not the server's");
        }
        for journal in self.journals.values() {
            let logged = disk.log.iter().filter(|(node, ..)| journal.node == Some(*node));
            let logged: Vec<&PayloadBytes> = logged.map(|(.., payload)| payload).collect();
            let same = logged
                .iter()
                .zip(&journal.records)
                .all(|(one, other)| *one == other);
            if logged.len() < journal.acked || !same {
                let what = format!("{} acknowledged, {} in the order", journal.acked, logged.len());
                self.fail(RegionRule::Survives, &what);
            }
        }
        for ((node, number), fate) in &self.history.outcomes {
            let there = disk.log.iter().any(|(of, at, _)| (of, at) == (node, number));
            if there != (*fate == RecordOutcome::Committed) {
                self.fail(
                    RegionRule::Outcome,
                    &format!("record {number} of node {node} was {fate:?}: {there}"),
                );
            }
        }
        self.check_any_order();
    }

    /// Merges the journals of all nodes in a random order.
    fn check_any_order(&mut self) {
        let mut lanes: BTreeMap<NodeId, Vec<(RecordNumber, PayloadBytes)>> = BTreeMap::new();
        for (node, number, payload) in &self.disk().log {
            lanes.entry(*node).or_default().push((*number, payload.clone()));
        }
        let mut merge = MergeQueue::new([], lanes.keys().map(|node| (*node, RecordNumber(0))));
        let (mut region, mut done) = (vec![0; WORDS], 0);
        let mut left: Vec<(NodeId, std::vec::IntoIter<(RecordNumber, PayloadBytes)>)> = lanes
            .into_iter()
            .map(|(node, lane)| (node, lane.into_iter()))
            .collect();
        while !left.is_empty() {
            let at = self.dice.below(left.len() as u64) as usize;
            let (node, lane) = &mut left[at];
            match lane.next() {
                None => drop(left.swap_remove(at)),
                Some((number, payload)) => {
                    let stamp = bytes::stamp(&payload);
                    let ticket = payload;
                    let pushed = merge.push(
                        *node,
                        QueuedRecord {
                            number,
                            stamp,
                            ticket,
                        },
                    );
                    pushed.expect("what was merged once");
                }
            }
            while let Some(entry) = merge.pop().expect("what was merged once") {
                bytes::apply(&entry.record.ticket, &mut region);
                done += 1;
            }
        }
        if region != self.disk().region || done != self.disk().log.len() {
            self.fail(
                RegionRule::AnyOrder,
                "the same journals, merged again, are another region",
            );
        }
    }
}
