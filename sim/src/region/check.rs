//! Oracles of the rules in `docs/design/shared.md` that are checked during a run. Those that hold at
//! quiescence are in `quiescence.rs`.

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::server::{FenceReason, NodeState};
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber, Stamp};

use super::bytes::{self, PayloadBytes, WORDS};
use super::orphan::{NEVER, OrphanState, RegionOrphan};
use super::process::{RegionProcess, TxnPhase};
use super::world::World;
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
    /// A client that does not own a node's journal changes nothing of the node.
    Owner,
}

/// Ends the run: a rule is broken.
pub(super) fn fail(rule: RegionRule, what: &str) -> ! {
    check::fail(REGION_RULES + rule as u8, String::from(what))
}

/// Checks a record of another node that is about to be applied.
pub(super) fn check_applied(process: &RegionProcess, slot: usize, stamp: &Stamp) {
    // While pages are transferred the memory may be ahead of the stream.
    let wrong = stamp
        .written
        .iter()
        .find(|(lock, makes)| process.is_whole() && process.region[bytes::span(*lock).start] + 1 != makes.0);
    if let Some((lock, makes)) = wrong {
        let stands = process.region[bytes::span(*lock).start];
        let what = format!("slot {slot}: lock {lock} from {stands} to {makes}");
        fail(RegionRule::Applied, &what);
    }
}

/// Checks that the memory shows each record as a whole, with every record that it had read.
pub(super) fn check_closed(process: &RegionProcess, slot: usize) {
    for stamp in process.last.iter().flatten() {
        for (lock, version) in stamp.read.iter().chain(&stamp.written) {
            let stands = process.region[bytes::span(*lock).start];
            if stands < version.0 {
                let what = format!("slot {slot}: lock {lock} at {stands}, below {version}");
                fail(RegionRule::Readers, &what);
            }
        }
    }
}

/// Checks a hint that was applied: every reader of the overwritten version is there as well. Otherwise a
/// reader would see a state that no order of the records produces.
pub(super) fn check_hint(world: &World, slot: usize, payload: &PayloadBytes) {
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    // A record that waits for a reader is not in the memory yet.
    let has = |lock: &LockId, version: &LockVersion| process.node.version(*lock) >= *version;
    for (lock, makes) in bytes::stamp(payload).written {
        for stamp in world.history.readers(lock, LockVersion(makes.0 - 1)) {
            if !stamp.written.iter().all(|(lock, version)| has(lock, version)) {
                let what =
                    format!("slot {slot}: version {makes} of lock {lock} is there, and {stamp:?} is not");
                fail(RegionRule::Readers, &what);
            }
        }
    }
}

pub(super) fn check_pinned(world: &World, slot: usize) {
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    let pinned = process.pinned.as_ref().filter(|_| process.txns.is_empty());
    if pinned.is_some_and(|pinned| *pinned != process.region) {
        let what = format!("slot {slot}: the memory changed under a reader");
        fail(RegionRule::Readers, &what);
    }
}

/// Checks a transaction that has its locks: its memory has everything that was acknowledged under them.
pub(super) fn check_locks_held(world: &World, slot: usize, txn: TxnId) {
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    // Under a lock held for longer than its lease the memory may be old: the commit will be refused.
    if !process.node.tokens().leased(world.local(slot)) {
        return;
    }
    for held in process.node.tokens().held_locks(txn) {
        let lock = held.lock;
        let stands = LockVersion(process.region[bytes::span(lock).start]);
        let newest = match world.history.excused.is_empty() {
            true => world.history.newest(lock),
            false => LockVersion(0),
        };
        if stands != held.version || stands < newest {
            let version = held.version;
            let what = format!(
                "slot {slot}: lock {lock} held at {version}, memory at {stands}, acknowledged {newest}"
            );
            fail(RegionRule::Granted, &what);
        }
    }
}

/// Checks that no transaction waits for longer than its deadline.
pub(super) fn check_waits(world: &World, slot: usize) {
    let now = world.local(slot);
    let process = world.slots[slot].process.iter();
    let mut txns = process.flat_map(|process| &process.txns);
    let late = |phase, deadline| phase == TxnPhase::Waiting && now.since(deadline) > SLACK;
    if txns.any(|txn| late(txn.phase, txn.deadline)) {
        let what = format!("slot {slot}: a transaction waits beyond its time");
        fail(RegionRule::Ends, &what);
    }
}

/// Checks that no word has changed that no program may write.
pub(super) fn check_memory(world: &World, slot: usize) {
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    if (0..WORDS).any(|word| process.region[word] != 0 && bytes::is_outside(word)) {
        fail(RegionRule::Undeclared, "a word of no span has changed");
    }
}

/// Checks an acknowledgement of a node's journal up to this record, by its members or the server.
pub(super) fn check_acked(world: &mut World, slot: usize, journal: JournalId, acked: RecordNumber) {
    let before = world.history.journals.get(&journal).map(|truth| truth.acked);
    world.history.acknowledge(journal, acked);
    let count = acked.0 - before.unwrap_or_default().0;
    world.kernel.add("region: commits", count);
    let node = world.history.journals.get(&journal).and_then(|truth| truth.node);
    let read = node.and_then(|node| world.history.read.get(&node));
    if read.is_some_and(|read| acked > *read) {
        let what =
            format!("slot {slot}: record {acked} is acknowledged after its journal was read: {read:?}");
        fail(RegionRule::AfterEnd, &what);
    }
}

/// Checks a record that the server merges.
pub(super) fn check_merged(world: &mut World, node: NodeId, number: RecordNumber, payload: &PayloadBytes) {
    for (lock, makes) in bytes::stamp(payload).written {
        let stands = world.server.memory()[bytes::span(lock).start];
        if stands + 1 != makes.0 {
            fail(
                RegionRule::Versions,
                &format!("lock {lock} from {stands} to {makes}"),
            );
        }
    }
    if world.server.disk.is_gone(node) {
        let what = format!("record {number} of node {node} comes after its end");
        fail(RegionRule::AfterEnd, &what);
    }
    world.kernel.hit("region: records merged");
}

/// Checks the server's report to a node of how much of its journal it keeps.
pub(super) fn check_server_ack(world: &World, slot: usize, number: RecordNumber, end: ChainPoint, view: u64) {
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    let journal = &process.journal;
    let mut rows = world.server.disk.table.nodes.values();
    let row = rows.find(|row| row.id == journal.id);
    let durable = row.map_or(RecordNumber(0), |row| row.number);
    let stored = row.and_then(|row| row.journal.as_ref());
    let stored = stored.map_or(u64::MAX, |journal| journal.view.version);
    if durable < number || stored < view || journal.end_of(number) != Some(end) {
        let what = format!(
            "slot {slot}: told that record {number} and view {view} are kept, and the disk has {durable} and {stored}"
        );
        fail(RegionRule::Survives, &what);
    }
}

/// Checks the server's reading of a dead node's journal.
pub(super) fn check_read(world: &mut World, node: NodeId, records: &[(RecordNumber, PayloadBytes)]) {
    let Some(truth) = world.history.node_history(node) else {
        return;
    };
    let genuine = |(number, payload): &(RecordNumber, PayloadBytes)| {
        truth.records.get(number.0 as usize - 1) == Some(payload)
    };
    if !records.iter().all(genuine) {
        fail(RegionRule::Survives, "the server read what was never appended");
    }
    let kept = world.server.disk.node(node).map(|row| row.number);
    let last = records.last().map(|(number, _)| *number);
    let last = last.max(kept).unwrap_or_default();
    if last < truth.acked && !world.history.excused.contains(&node) {
        let what = format!(
            "node {node} is read to {last}, and {} were acknowledged",
            truth.acked
        );
        fail(RegionRule::Survives, &what);
    }
    if records.len() as u64 > 0 && last > truth.acked {
        world
            .kernel
            .hit("region: journals read that had what was not acknowledged");
    }
    world.history.read.entry(node).or_insert(last);
}

/// Checks the opening of an orphan journal by its node's own library.
pub(super) fn check_orphan(world: &World, left: &RegionOrphan) {
    let OrphanState::Read(first, records) = &left.state else {
        return;
    };
    let node = left.node;
    let Some(truth) = world.history.node_history(node) else {
        return;
    };
    let before = first.0 as usize - 1;
    let here = truth.records.get(before..before + records.len());
    if here != Some(records.as_slice()) {
        fail(RegionRule::Survives, "a journal that was left has other records");
    }
    let last = RecordNumber((before + records.len()) as u64);
    let row = world.server.disk.node(node);
    let kept = row.map_or(RecordNumber(0), |row| row.number);
    let gone = row.is_some_and(|row| row.state == NodeState::Gone);
    if last.max(kept) < truth.acked && !gone {
        let what = format!(
            "node {node} left {last} records, and {} were acknowledged",
            truth.acked
        );
        fail(RegionRule::Survives, &what);
    }
}

/// Checks a durable report that a node is gone: all of its acknowledged records are durable too.
pub(super) fn check_gone(world: &World, node: NodeId) {
    let row = world.server.disk.node(node);
    let has = row.map_or(RecordNumber(0), |row| row.number);
    let acked = world
        .history
        .node_history(node)
        .map_or(RecordNumber(0), |truth| truth.acked);
    if acked > has && !world.history.excused.contains(&node) {
        let what = format!("node {node} had {acked} acknowledged, and {has} count");
        fail(RegionRule::Survives, &what);
    }
}

/// Checks the reason for a fence. Nodes of this world break no rules; one that leaves may have to wait
/// too long for others.
pub(super) fn check_fencing(world: &World, node: NodeId, why: FenceReason) {
    let sound = matches!(
        why,
        FenceReason::Silent | FenceReason::Dead | FenceReason::Behind | FenceReason::Unmerged
    );
    if !sound && world.history.excused.is_empty() {
        fail(RegionRule::Ends, &format!("node {node} was fenced: {why}"));
    }
}

pub(super) fn check_outcome(world: &mut World, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
    if fate == RecordOutcome::Open {
        return;
    }
    world.kernel.hit(match fate {
        RecordOutcome::Aborted => "region: outcomes told: aborted",
        _ => "region: outcomes told: committed",
    });
    if number == NEVER && !world.server.disk.is_gone(node) {
        let what = format!("node {node} is called gone, and may not be: it was told {fate:?}");
        fail(RegionRule::Outcome, &what);
    }
    let before = world.history.outcomes.insert((node, number), fate);
    if before.is_some_and(|before| before != fate) {
        let what = format!("record {number} of node {node} is {fate:?} now");
        fail(RegionRule::Outcome, &what);
    }
}
