//! The program in a process: its transactions, readers, queries and offers.

use netram_proto::time::Nanos;
use netram_shared_machine::lock::{Acquired, TxnId};
use netram_shared_machine::{LockId, LockMode, Stamp};

use super::bytes::{self, LOCKS};
use super::check::{check_locks_held, check_pinned};
use super::kernel::Event;
use super::node_events::{run_actions, settle};
use super::orphans::offer_orphans;
use super::process::{ProgramTxn, RegionProcess, TxnPhase};
use super::world::World;

const LOCK_TIMEOUT: Nanos = Nanos::from_ms(500);

pub(super) fn on_program(world: &mut World, slot: usize, life: u64) {
    let us = world.kernel.rng.between(100, 4000);
    if world.slots[slot].alive(life).is_none() {
        return;
    }
    world.kernel.at(Nanos::from_us(us), Event::Program { slot, life });
    let Some(process) = &world.slots[slot].process else {
        return;
    };
    if !process.is_whole() {
        return;
    }
    let ready = process
        .txns
        .iter()
        .find(|txn| txn.phase == TxnPhase::Ready)
        .cloned();
    let few = process.txns.len() < 2;
    if world.kernel.rng.chance(50) {
        offer_orphans(world, slot);
    }
    if world.kernel.rng.chance(30) {
        ask_outcomes(world, slot);
    }
    let calm = world.kernel.is_calm();
    if let Some(txn) = ready {
        continue_txn(world, slot, &txn);
    } else if few && !calm && world.kernel.rng.chance(600) {
        begin(world, slot);
    }
    read(world, slot);
    settle(world, slot);
}

/// Begins to write under one lock, whatever else goes on.
pub(super) fn begin_to_write(world: &mut World, slot: usize, lock: LockId, waits: Nanos) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let (id, deadline) = (process.node.begin(true), now + waits);
    let hold = LockMode::Exclusive;
    let acquired = process.node.acquire(now, id, lock, hold, deadline);
    let phase = phase(acquired.ok());
    process.txns.push(ProgramTxn {
        id,
        wants: Vec::new(),
        phase,
        deadline,
        must_succeed: true,
    });
    settle_txn(world, slot, id, phase);
}

fn begin(world: &mut World, slot: usize) {
    let mut wants: Vec<(LockId, LockMode)> = Vec::new();
    for _ in 0..world.kernel.rng.between(1, 3) {
        let lock = LockId(world.kernel.rng.below(u64::from(LOCKS)) as u32);
        let hold = match world.kernel.rng.chance(500) {
            true => LockMode::Exclusive,
            false => LockMode::Shared,
        };
        wants.push((lock, hold));
    }
    world.kernel.tell(|| format!("slot {slot} wants {wants:?}"));
    let all = world.kernel.rng.chance(500);
    let undoable = all || world.kernel.rng.chance(800);
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let id = process.node.begin(undoable);
    let deadline = now + LOCK_TIMEOUT;
    let phase = match all {
        true => phase(process.node.acquire_all(now, id, &mut wants, deadline).ok()),
        false => TxnPhase::Ready,
    };
    if all {
        wants.clear();
    }
    process.txns.push(ProgramTxn {
        id,
        wants,
        phase,
        deadline,
        must_succeed: false,
    });
    match all {
        true => settle_txn(world, slot, id, phase),
        false => acquire_next(world, slot, id),
    }
}

fn acquire_next(world: &mut World, slot: usize, id: TxnId) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) else {
        return;
    };
    let Some((lock, hold)) = txn.wants.pop() else {
        return;
    };
    txn.deadline = now + LOCK_TIMEOUT;
    let acquired = process.node.acquire(now, id, lock, hold, txn.deadline);
    txn.phase = phase(acquired.ok());
    let phase = txn.phase;
    settle_txn(world, slot, id, phase);
}

fn settle_txn(world: &mut World, slot: usize, id: TxnId, phase: TxnPhase) {
    run_actions(world, slot);
    match phase {
        TxnPhase::Ready => check_locks_held(world, slot, id),
        TxnPhase::Failed => {
            let now = world.local(slot);
            if let Some(process) = &mut world.slots[slot].process {
                process.end_failed(now);
            }
        }
        _ => (),
    }
}

fn continue_txn(world: &mut World, slot: usize, txn: &ProgramTxn) {
    let now = world.local(slot);
    if !txn.wants.is_empty() {
        return acquire_next(world, slot, txn.id);
    }
    if world.kernel.rng.chance(world.kernel.profile.leave_open_permille) {
        return;
    }
    let aborts = world.kernel.rng.chance(100);
    if !aborts && write(world, slot, txn.id) {
        return;
    }
    if let Some(process) = &mut world.slots[slot].process {
        process.abort(now, txn.id);
    }
}

/// Commits an open transaction as it is. `false`: there is none that could write.
pub(super) fn commit_open(world: &mut World, slot: usize) -> bool {
    let process = world.slots[slot].process.as_ref();
    let open = process.and_then(RegionProcess::open_txn);
    open.is_some_and(|id| write(world, slot, id))
}

/// Writes under a transaction's locks and commits, or lets it wait for room. `false`: it may not write.
fn write(world: &mut World, slot: usize, id: TxnId) -> bool {
    let Some(process) = &mut world.slots[slot].process else {
        return false;
    };
    let held = process.node.tokens().held_locks(id);
    let held: Vec<(LockId, LockMode)> = held.map(|held| (held.lock, held.hold)).collect();
    if !held.iter().any(|(_, hold)| *hold == LockMode::Exclusive) {
        return false;
    }
    if !process.journal.has_room(200) {
        world.kernel.hit("region: commits that waited for room");
        return true;
    }
    let mut written: Vec<LockId> = Vec::new();
    for (lock, hold) in held {
        // Some exclusive locks are not written under, so that no transaction waits for a version of theirs.
        if hold == LockMode::Exclusive && (written.is_empty() || world.kernel.rng.chance(700)) {
            process.node.on_written(id, lock);
            written.push(lock);
        }
    }
    commit(world, slot, id, &written);
    true
}

fn commit(world: &mut World, slot: usize, id: TxnId, written: &[LockId]) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let stamp: Stamp = process.node.stamp(id);
    let mut writes = Vec::new();
    for lock in written {
        let version = stamp.written.iter().find(|(other, _)| other == lock);
        let version = version.expect("what was written is in the stamp").1;
        let words = bytes::span(*lock);
        writes.push((words.start, version.0));
        let rng = &mut world.kernel.rng;
        writes.push((words.start + 1 + rng.index(3), rng.draw()));
    }
    writes.sort_unstable();
    let payload = bytes::record(&stamp, &writes);
    let end = process.journal.append(&payload);
    world.history.append(process.journal.id, payload.clone());
    let number = process.node.on_appended(now, end, payload.clone());
    assert_eq!(number.0, process.journal.ends.len() as u64);
    if let Some(txn) = process.txn_mut(id) {
        txn.phase = TxnPhase::Committing(number);
    }
    process.change(&stamp, &payload);
    world
        .kernel
        .tell(|| format!("slot {slot} appends record {number}, {stamp:?}, to {}", end.lsn));
}

/// Readers begin, look again, and end.
fn read(world: &mut World, slot: usize) {
    let choice = world.kernel.rng.below(100);
    let calm = world.kernel.is_calm();
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let idle = process.txns.is_empty();
    match process.pinned {
        None if idle && choice < 5 && !calm => {
            process.node.begin_read();
            process.pinned = Some(process.region.clone());
            world.kernel.tell(|| format!("slot {slot} pins a reader"));
        }
        Some(_) if !idle => {
            // A program that has acquired a lock sees the newest memory.
            process.pinned = None;
            process.node.end_read();
        }
        Some(_) if choice < 10 => {
            check_pinned(world, slot);
            if let Some(process) = &mut world.slots[slot].process {
                process.pinned = None;
                process.node.end_read();
            }
        }
        Some(_) if choice < 20 => {
            check_pinned(world, slot);
            if let Some(process) = &mut world.slots[slot].process {
                process.pinned = None;
                process.node.accept();
            }
            run_actions(world, slot);
            if let Some(process) = &mut world.slots[slot].process {
                process.pinned = Some(process.region.clone());
            }
        }
        _ => (),
    }
}

fn ask_outcomes(world: &mut World, slot: usize) {
    let unknown = world.slots[slot].unknown_outcomes.clone();
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    for (node, number) in unknown {
        process.node.ask_outcome(node, number);
    }
}

fn phase(acquired: Option<Acquired>) -> TxnPhase {
    match acquired {
        Some(Acquired::Granted) => TxnPhase::Ready,
        Some(Acquired::Waits) => TxnPhase::Waiting,
        None => TxnPhase::Failed,
    }
}
