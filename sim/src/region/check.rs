//! Oracles of the rules in `docs/design/shared.md` that are checked during a run. Those that hold at
//! quiescence are in `quiescence.rs`.

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::server::{FenceReason, NodeState};
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber};

use super::World;
use super::bytes::{self, PayloadBytes, WORDS};
use super::orphans::NEVER;
use super::process::TxnPhase;
use crate::check;

/// Added to the rules' numbers in a [`check::RuleViolation`], to tell them from those of journals.
pub const REGION_RULES: u8 = 200;
/// Longest delay of a timer.
const SLACK: Nanos = Nanos::from_ms(60);

/// Rules of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RegionRule {
    /// Applied versions never skip and never go back.
    Applied = 1,
    /// An acknowledged record survives.
    Survives,
    /// Versions under a lock are 1, 2, 3 ...
    Versions,
    /// No record of a node counts after its end.
    AfterEnd,
    /// A node that holds a lock has applied the lock's version.
    Granted,
    /// At quiescence all copies are equal.
    Equal,
    /// Any order that the stamps allow leads to the same region.
    AnyOrder,
    /// Readers see states that existed, whole.
    Readers,
    /// Every acquire ends.
    Ends,
    /// Undeclared bytes never change.
    Undeclared,
    /// A reported outcome never changes.
    Outcome,
    /// At quiescence no lender has a window of a node that is gone.
    Forgotten,
}

impl World {
    pub(super) fn fail(&self, rule: RegionRule, what: &str) -> ! {
        check::fail(REGION_RULES + rule as u8, String::from(what))
    }

    /// Applies a record of another node to a node's memory.
    pub(super) fn apply(&mut self, slot: usize, payload: &PayloadBytes) {
        let stamp = bytes::stamp(payload);
        self.tell(|| format!("slot {slot} applies {stamp:?}"));
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        // While pages are transferred the memory may be ahead of the stream.
        let wrong = stamp.written.iter().find(|(lock, makes)| {
            process.is_whole() && process.region[bytes::span(*lock).start] + 1 != makes.0
        });
        if let Some((lock, makes)) = wrong {
            let stands = process.region[bytes::span(*lock).start];
            let what = format!("slot {slot}: lock {lock} from {stands} to {makes}");
            self.fail(RegionRule::Applied, &what);
        }
        process.change(&stamp, payload);
        if process.is_whole() {
            self.check_closed(slot);
        }
    }

    /// Checks that the memory shows each record as a whole, with every record that it had read.
    fn check_closed(&self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        for stamp in process.last.iter().flatten() {
            for (lock, version) in stamp.read.iter().chain(&stamp.written) {
                let stands = process.region[bytes::span(*lock).start];
                if stands < version.0 {
                    let what = format!("slot {slot}: lock {lock} at {stands}, below {version}");
                    self.fail(RegionRule::Readers, &what);
                }
            }
        }
    }

    /// Checks a hint that was applied: every reader of the overwritten version is there as well. Otherwise a
    /// reader would see a state that no order of the records produces.
    pub(super) fn check_hint(&self, slot: usize, payload: &PayloadBytes) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        // A record that waits for a reader is not in the memory yet.
        let has = |lock: &LockId, version: &LockVersion| process.node.version(*lock) >= *version;
        for (lock, makes) in bytes::stamp(payload).written {
            for stamp in self.history.readers(lock, LockVersion(makes.0 - 1)) {
                if !stamp.written.iter().all(|(lock, version)| has(lock, version)) {
                    let what =
                        format!("slot {slot}: version {makes} of lock {lock} is there, and {stamp:?} is not");
                    self.fail(RegionRule::Readers, &what);
                }
            }
        }
    }

    pub(super) fn check_pinned(&self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let pinned = process.pinned.as_ref().filter(|_| process.txns.is_empty());
        if pinned.is_some_and(|pinned| *pinned != process.region) {
            let what = format!("slot {slot}: the memory changed under a reader");
            self.fail(RegionRule::Readers, &what);
        }
    }

    /// Checks a transaction that has its locks: its memory has everything that was acknowledged under them.
    pub(super) fn check_locks_held(&self, slot: usize, txn: TxnId) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        // Under a lock held for longer than its lease the memory may be old: the commit will be refused.
        if !process.node.tokens().leased(self.local(slot)) {
            return;
        }
        for held in process.node.tokens().held_locks(txn) {
            let lock = held.lock;
            let stands = LockVersion(process.region[bytes::span(lock).start]);
            let newest = match self.history.excused.is_empty() {
                true => self.history.newest(lock),
                false => LockVersion(0),
            };
            if stands != held.version || stands < newest {
                let version = held.version;
                let what = format!(
                    "slot {slot}: lock {lock} held at {version}, memory at {stands}, acknowledged {newest}"
                );
                self.fail(RegionRule::Granted, &what);
            }
        }
    }

    /// Checks that no transaction waits for longer than its deadline.
    pub(super) fn check_waits(&self, slot: usize) {
        let now = self.local(slot);
        let process = self.slots[slot].process.iter();
        let mut txns = process.flat_map(|process| &process.txns);
        let late = |phase, deadline| phase == TxnPhase::Waiting && now.since(deadline) > SLACK;
        if txns.any(|txn| late(txn.phase, txn.deadline)) {
            let what = format!("slot {slot}: a transaction waits beyond its time");
            self.fail(RegionRule::Ends, &what);
        }
    }

    pub(super) fn check_memory(&self, slot: usize) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        self.check_outside(&process.region);
    }

    fn check_outside(&self, region: &[u64]) {
        if (0..WORDS).any(|word| region[word] != 0 && bytes::is_outside(word)) {
            self.fail(RegionRule::Undeclared, "a word of no span has changed");
        }
    }

    /// Checks an acknowledgement of a node's journal up to this record, by its members or the server.
    pub(super) fn check_acked(&mut self, slot: usize, journal: JournalId, acked: RecordNumber) {
        let before = self.history.journals.get(&journal).map(|truth| truth.acked);
        self.history.acknowledge(journal, acked);
        let count = acked.0 - before.unwrap_or_default().0;
        self.coverage.add("region: commits", count);
        let node = self.history.journals.get(&journal).and_then(|truth| truth.node);
        let read = node.and_then(|node| self.history.read.get(&node));
        if read.is_some_and(|read| acked > *read) {
            let what =
                format!("slot {slot}: record {acked} is acknowledged after its journal was read: {read:?}");
            self.fail(RegionRule::AfterEnd, &what);
        }
    }

    /// Checks a record that the server merges.
    pub(super) fn check_merged(&mut self, node: NodeId, number: RecordNumber, payload: &PayloadBytes) {
        for (lock, makes) in bytes::stamp(payload).written {
            let stands = self.server.memory()[bytes::span(lock).start];
            if stands + 1 != makes.0 {
                self.fail(
                    RegionRule::Versions,
                    &format!("lock {lock} from {stands} to {makes}"),
                );
            }
        }
        if self.is_gone(node) {
            let what = format!("record {number} of node {node} comes after its end");
            self.fail(RegionRule::AfterEnd, &what);
        }
        self.coverage.hit("region: records merged");
    }

    /// Checks the server's report to a node of how much of its journal it keeps.
    pub(super) fn check_server_ack(&self, slot: usize, number: RecordNumber, end: ChainPoint, view: u64) {
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let journal = &process.journal;
        let mut rows = self.server.disk.table.nodes.values();
        let row = rows.find(|row| row.id == journal.id);
        let durable = row.map_or(RecordNumber(0), |row| row.number);
        let stored = row.and_then(|row| row.journal.as_ref());
        let stored = stored.map_or(u64::MAX, |journal| journal.view.version);
        if durable < number || stored < view || journal.end_of(number) != Some(end) {
            let what = format!(
                "slot {slot}: told that record {number} and view {view} are kept, and the disk has {durable} and {stored}"
            );
            self.fail(RegionRule::Survives, &what);
        }
    }

    /// Checks the server's reading of a dead node's journal.
    pub(super) fn check_read(&mut self, node: NodeId, records: &[(RecordNumber, PayloadBytes)]) {
        let Some(truth) = self.history.node_history(node) else {
            return;
        };
        let genuine = |(number, payload): &(RecordNumber, PayloadBytes)| {
            truth.records.get(number.0 as usize - 1) == Some(payload)
        };
        if !records.iter().all(genuine) {
            self.fail(RegionRule::Survives, "the server read what was never appended");
        }
        let kept = self.server.disk.table.nodes.get(&node).map(|row| row.number);
        let last = records.last().map(|(number, _)| *number);
        let last = last.max(kept).unwrap_or_default();
        if last < truth.acked && !self.history.excused.contains(&node) {
            let what = format!(
                "node {node} is read to {last}, and {} were acknowledged",
                truth.acked
            );
            self.fail(RegionRule::Survives, &what);
        }
        if records.len() as u64 > 0 && last > truth.acked {
            self.coverage
                .hit("region: journals read that had what was not acknowledged");
        }
        self.history.read.entry(node).or_insert(last);
    }

    /// Checks the opening of an orphan journal by its node's own library.
    pub(super) fn check_orphan(&self, node: NodeId, first: RecordNumber, records: &[PayloadBytes]) {
        let Some(truth) = self.history.node_history(node) else {
            return;
        };
        let before = first.0 as usize - 1;
        let here = truth.records.get(before..before + records.len());
        if here != Some(records) {
            self.fail(RegionRule::Survives, "a journal that was left has other records");
        }
        let last = RecordNumber((before + records.len()) as u64);
        let row = self.server.disk.table.nodes.get(&node);
        let kept = row.map_or(RecordNumber(0), |row| row.number);
        let gone = row.is_some_and(|row| row.state == NodeState::Gone);
        if last.max(kept) < truth.acked && !gone {
            let what = format!(
                "node {node} left {last} records, and {} were acknowledged",
                truth.acked
            );
            self.fail(RegionRule::Survives, &what);
        }
    }

    /// Checks a durable report that a node is gone: all of its acknowledged records are durable too.
    pub(super) fn check_gone(&self, node: NodeId) {
        let row = self.server.disk.table.nodes.get(&node);
        let has = row.map_or(RecordNumber(0), |row| row.number);
        let acked = self
            .history
            .node_history(node)
            .map_or(RecordNumber(0), |truth| truth.acked);
        if acked > has && !self.history.excused.contains(&node) {
            let what = format!("node {node} had {acked} acknowledged, and {has} count");
            self.fail(RegionRule::Survives, &what);
        }
    }

    /// Checks the reason for a fence. Nodes of this world break no rules; one that leaves may have to wait
    /// too long for others.
    pub(super) fn check_fencing(&self, node: NodeId, why: FenceReason) {
        let sound = matches!(
            why,
            FenceReason::Silent | FenceReason::Dead | FenceReason::Behind | FenceReason::Unmerged
        );
        if !sound && self.history.excused.is_empty() {
            self.fail(RegionRule::Ends, &format!("node {node} was fenced: {why}"));
        }
    }

    pub(super) fn check_outcome(&mut self, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
        if fate == RecordOutcome::Open {
            return;
        }
        self.coverage.hit(match fate {
            RecordOutcome::Aborted => "region: outcomes told: aborted",
            _ => "region: outcomes told: committed",
        });
        if number == NEVER && !self.is_gone(node) {
            let what = format!("node {node} is called gone, and may not be: it was told {fate:?}");
            self.fail(RegionRule::Outcome, &what);
        }
        let before = self.history.outcomes.insert((node, number), fate);
        if before.is_some_and(|before| before != fate) {
            let what = format!("record {number} of node {node} is {fate:?} now");
            self.fail(RegionRule::Outcome, &what);
        }
    }
}
