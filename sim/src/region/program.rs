//! The program in a process: its transactions, readers, queries and offers.

use netram_proto::time::Nanos;
use netram_shared_machine::lock::{Acquired, TxnId};
use netram_shared_machine::{LockId, LockMode, Stamp};

use super::bytes::{self, LOCKS};
use super::process::{ProgramTxn, TxnPhase};
use super::{Event, World};

const LOCK_TIMEOUT: Nanos = Nanos::from_ms(500);

impl World {
    pub(super) fn on_program(&mut self, slot: usize, life: u64) {
        let us = self.rng.between(100, 4000);
        if self.slots[slot].alive(life).is_none() {
            return;
        }
        self.at(Nanos::from_us(us), Event::Program { slot, life });
        let Some(process) = &self.slots[slot].process else {
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
        if self.rng.chance(50) {
            self.offer_orphans(slot);
        }
        if self.rng.chance(30) {
            self.ask_outcomes(slot);
        }
        let calm = self.calm_since.is_some();
        if let Some(txn) = ready {
            self.continue_txn(slot, &txn);
        } else if few && !calm && self.rng.chance(600) {
            self.begin(slot);
        }
        self.read(slot);
        self.settle(slot);
    }

    /// Begins to write under one lock, whatever else goes on.
    pub(super) fn begin_to_write(&mut self, slot: usize, lock: LockId, waits: Nanos) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
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
        self.settle_txn(slot, id, phase);
    }

    fn begin(&mut self, slot: usize) {
        let mut wants: Vec<(LockId, LockMode)> = Vec::new();
        for _ in 0..self.rng.between(1, 3) {
            let lock = LockId(self.rng.below(u64::from(LOCKS)) as u32);
            let hold = match self.rng.chance(500) {
                true => LockMode::Exclusive,
                false => LockMode::Shared,
            };
            wants.push((lock, hold));
        }
        self.tell(|| format!("slot {slot} wants {wants:?}"));
        let all = self.rng.chance(500);
        let undoable = all || self.rng.chance(800);
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
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
            true => self.settle_txn(slot, id, phase),
            false => self.acquire_next(slot, id),
        }
    }

    fn acquire_next(&mut self, slot: usize, id: TxnId) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
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
        self.settle_txn(slot, id, phase);
    }

    fn settle_txn(&mut self, slot: usize, id: TxnId, phase: TxnPhase) {
        self.run_actions(slot);
        match phase {
            TxnPhase::Ready => self.check_locks_held(slot, id),
            TxnPhase::Failed => {
                let now = self.local(slot);
                if let Some(process) = &mut self.slots[slot].process {
                    process.end_failed(now);
                }
            }
            _ => (),
        }
    }

    fn continue_txn(&mut self, slot: usize, txn: &ProgramTxn) {
        let now = self.local(slot);
        if !txn.wants.is_empty() {
            return self.acquire_next(slot, txn.id);
        }
        if self.rng.chance(self.profile.leave_open_permille) {
            return;
        }
        let aborts = self.rng.chance(100);
        if !aborts && self.write(slot, txn.id) {
            return;
        }
        if let Some(process) = &mut self.slots[slot].process {
            process.node.end(now, txn.id, None);
            process.txns.retain(|other| other.id != txn.id);
        }
    }

    /// Commits an open transaction as it is. `false`: there is none that could write.
    pub(super) fn commit_open(&mut self, slot: usize) -> bool {
        let process = self.slots[slot].process.iter();
        let mut txns = process.flat_map(|process| &process.txns);
        let open = txns.find(|txn| txn.phase == TxnPhase::Ready);
        let open = open.map(|txn| txn.id);
        open.is_some_and(|id| self.write(slot, id))
    }

    /// Writes under a transaction's locks and commits, or lets it wait for room. `false`: it may not write.
    fn write(&mut self, slot: usize, id: TxnId) -> bool {
        let Some(process) = &mut self.slots[slot].process else {
            return false;
        };
        let held = process.node.tokens().held_locks(id);
        let held: Vec<(LockId, LockMode)> = held.map(|held| (held.lock, held.hold)).collect();
        if !held.iter().any(|(_, hold)| *hold == LockMode::Exclusive) {
            return false;
        }
        if !process.journal.has_room(200) {
            self.coverage.hit("region: commits that waited for room");
            return true;
        }
        let mut written: Vec<LockId> = Vec::new();
        for (lock, hold) in held {
            // Some exclusive locks are not written under, so that no transaction waits for a version of
            // theirs.
            if hold == LockMode::Exclusive && (written.is_empty() || self.rng.chance(700)) {
                process.node.on_written(id, lock);
                written.push(lock);
            }
        }
        self.commit(slot, id, &written);
        true
    }

    fn commit(&mut self, slot: usize, id: TxnId, written: &[LockId]) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let stamp: Stamp = process.node.stamp(id);
        let mut writes = Vec::new();
        for lock in written {
            let version = stamp.written.iter().find(|(other, _)| other == lock);
            let version = version.expect("what was written is in the stamp").1;
            let words = bytes::span(*lock);
            writes.push((words.start, version.0));
            writes.push((words.start + 1 + self.rng.index(3), self.rng.draw()));
        }
        writes.sort_unstable();
        let payload = bytes::record(&stamp, &writes);
        let end = process.journal.append(&payload);
        self.history.append(process.journal.id, payload.clone());
        let number = process.node.on_appended(now, end, payload.clone());
        assert_eq!(number.0, process.journal.ends.len() as u64);
        if let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) {
            txn.phase = TxnPhase::Committing(number);
        }
        process.change(&stamp, &payload);
        self.tell(|| format!("slot {slot} appends record {number}, {stamp:?}, to {}", end.lsn));
    }

    /// Readers begin, look again, and end.
    fn read(&mut self, slot: usize) {
        let choice = self.rng.below(100);
        let calm = self.calm_since.is_some();
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let idle = process.txns.is_empty();
        match process.pinned {
            None if idle && choice < 5 && !calm => {
                process.node.begin_read();
                process.pinned = Some(process.region.clone());
                self.tell(|| format!("slot {slot} pins a reader"));
            }
            Some(_) if !idle => {
                // A program that has acquired a lock sees the newest memory.
                process.pinned = None;
                process.node.end_read();
            }
            Some(_) if choice < 10 => {
                self.check_pinned(slot);
                if let Some(process) = &mut self.slots[slot].process {
                    process.pinned = None;
                    process.node.end_read();
                }
            }
            Some(_) if choice < 20 => {
                self.check_pinned(slot);
                if let Some(process) = &mut self.slots[slot].process {
                    process.pinned = None;
                    process.node.accept();
                }
                self.run_actions(slot);
                if let Some(process) = &mut self.slots[slot].process {
                    process.pinned = Some(process.region.clone());
                }
            }
            _ => (),
        }
    }

    fn ask_outcomes(&mut self, slot: usize) {
        let unknown = self.slots[slot].unknown_outcomes.clone();
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        for (node, number) in unknown {
            process.node.ask_outcome(node, number);
        }
    }
}

fn phase(acquired: Option<Acquired>) -> TxnPhase {
    match acquired {
        Some(Acquired::Granted) => TxnPhase::Ready,
        Some(Acquired::Waits) => TxnPhase::Waiting,
        None => TxnPhase::Failed,
    }
}
