//! The program in a process: transactions, readers, questions.

use netram_proto::time::Nanos;
use netram_shared_machine::lock::{Acquired, TxnId};
use netram_shared_machine::{LockId, LockMode, RecordNumber, Stamp};

use super::bytes;
use super::process::{ProgramTxn, TxnPhase};
use super::{World, WorldBug};

const PATIENCE: Nanos = Nanos::from_ms(400);

impl World {
    pub(super) fn run_program(&mut self, slot: usize) {
        let now = self.now;
        let Some(process) = self.slots[slot].awake(now) else {
            return;
        };
        if !process.is_whole() {
            return;
        }
        if !process.offered && self.dice.percent(20) {
            self.offer_orphan(slot);
        }
        if self.dice.percent(5) {
            self.ask_outcomes(slot);
        }
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        if let Some(txn) = process
            .txns
            .iter()
            .find(|txn| txn.phase == TxnPhase::Ready)
            .cloned()
        {
            self.go_on(slot, txn);
        } else if process.txns.len() < 2 && !self.quiescing && !self.script && self.dice.percent(40) {
            self.begin(slot);
        }
        if !self.script || self.quiescing {
            self.read(slot);
        }
        self.run_actions(slot);
    }

    fn begin(&mut self, slot: usize) {
        let mut wants: Vec<(LockId, LockMode)> = Vec::new();
        for _ in 0..1 + self.dice.below(3) {
            let lock = LockId(self.dice.below(u64::from(bytes::LOCKS)) as u32);
            let hold = if self.dice.percent(50) {
                LockMode::Exclusive
            } else {
                LockMode::Shared
            };
            wants.push((lock, hold));
        }
        self.begin_with(slot, wants);
    }

    /// Begins a transaction that wants these locks: all at once, or one after another in this order.
    pub(crate) fn begin_with(&mut self, slot: usize, mut wants: Vec<(LockId, LockMode)>) {
        let now = self.now;
        let all = self.dice.percent(50);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let id = process.node.begin(true);
        if !all {
            wants.reverse();
            process.txns.push(ProgramTxn {
                id,
                wants,
                phase: TxnPhase::Ready,
            });
            return self.acquire_next(slot, id);
        }
        let acquired = process.node.acquire_all(now, id, &mut wants, now + PATIENCE);
        let phase = phase(acquired.ok());
        process.txns.push(ProgramTxn {
            id,
            wants: Vec::new(),
            phase,
        });
        self.settle_txn(slot, id, phase);
    }

    fn acquire_next(&mut self, slot: usize, id: TxnId) {
        let now = self.now;
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) else {
            return;
        };
        let Some((lock, hold)) = txn.wants.pop() else {
            return;
        };
        let acquired = process.node.acquire(now, id, lock, hold, now + PATIENCE);
        txn.phase = phase(acquired.ok());
        let phase = txn.phase;
        self.settle_txn(slot, id, phase);
    }

    fn settle_txn(&mut self, slot: usize, id: TxnId, phase: TxnPhase) {
        self.run_actions(slot);
        match phase {
            TxnPhase::Ready => self.check_locks_held(slot, id),
            TxnPhase::Failed => {
                let now = self.now;
                if let Some(process) = &mut self.slots[slot].process {
                    process.end_failed(now);
                }
            }
            _ => (),
        }
    }

    fn go_on(&mut self, slot: usize, txn: ProgramTxn) {
        let now = self.now;
        if !txn.wants.is_empty() {
            return self.acquire_next(slot, txn.id);
        }
        if self.dice.percent(40) {
            return;
        }
        let aborts = !self.script && self.dice.percent(10);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let held: Vec<(LockId, LockMode)> = {
            let held = process.node.tokens().held_locks(txn.id);
            held.map(|held| (held.lock, held.hold)).collect()
        };
        let writes = held.iter().any(|(_, hold)| *hold == LockMode::Exclusive);
        if aborts || !writes {
            process.node.end(now, txn.id, None);
            process.txns.retain(|other| other.id != txn.id);
            return;
        }
        let mut written: Vec<LockId> = Vec::new();
        for (lock, hold) in held {
            // Some locks are held exclusively and not written under: no node may wait for a version of
            // theirs.
            if hold == LockMode::Exclusive && (self.script || written.is_empty() || self.dice.percent(70)) {
                process.node.on_written(txn.id, lock);
                written.push(lock);
            }
        }
        self.commit(slot, txn.id, &written);
    }

    fn commit(&mut self, slot: usize, id: TxnId, written: &[LockId]) {
        let now = self.now;
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let stamp = process.node.stamp(id);
        let mut writes = Vec::new();
        for lock in written {
            let version = stamp.written.iter().find(|(other, _)| other == lock);
            let version = version.expect("what was written is in the stamp").1;
            let words = bytes::span(*lock);
            writes.push((words.start, version.0));
            writes.push((words.start + 1 + self.dice.below(3) as usize, self.dice.next()));
        }
        writes.sort_unstable();
        let payload = bytes::record(&stamp, &writes);
        let Some(journal) = self.journals.get_mut(&process.journal) else {
            return;
        };
        let end = journal.append(payload.clone());
        let number = process.node.on_appended(now, end, payload.clone());
        assert_eq!(number, RecordNumber(journal.records.len() as u64));
        if let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) {
            txn.phase = TxnPhase::Committing(number);
        }
        process.change(&stamp, &payload);
        self.run_actions(slot);
        if self.planted == WorldBug::HintBeforeSafe {
            self.send_unsafe(slot);
        }
    }

    /// Readers begin, accept, and end.
    fn read(&mut self, slot: usize) {
        let choice = self.dice.below(100);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let idle = process.txns.is_empty();
        match process.pinned {
            None if idle && choice < 5 => {
                process.node.begin_read();
                process.pinned = Some(process.region.clone());
            }
            Some(_) if choice < 10 => {
                self.check_pinned(slot);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                process.pinned = None;
                process.node.end_read();
            }
            Some(_) if choice < 20 => {
                self.check_pinned(slot);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                process.pinned = None;
                process.node.accept();
                self.run_actions(slot);
                if let Some(process) = &mut self.slots[slot].process {
                    process.pinned = Some(process.region.clone());
                }
            }
            Some(_) if !idle => process.pinned = None,
            _ => (),
        }
    }

    /// Number of the record that a process waits for.
    pub(crate) fn committing(&self, slot: usize) -> Option<RecordNumber> {
        let process = self.slots[slot].process.as_ref()?;
        process.txns.iter().find_map(|txn| match txn.phase {
            TxnPhase::Committing(number) => Some(number),
            _ => None,
        })
    }

    /// Lets a process's members accept no more records, or accept them again.
    pub(crate) fn hold_acks(&mut self, slot: usize, hold: bool) {
        let id = self.slots[slot].process.as_ref().map(|process| process.journal);
        if let Some(journal) = id.and_then(|id| self.journals.get_mut(&id)) {
            journal.slow = hold;
        }
    }

    pub(crate) fn has_lock(&self, slot: usize, lock: LockId) -> bool {
        let Some(process) = &self.slots[slot].process else {
            return false;
        };
        let mut held = process
            .txns
            .iter()
            .flat_map(|txn| process.node.tokens().held_locks(txn.id));
        held.any(|held| held.lock == lock)
    }

    /// Makes all lazy nodes ask for records.
    pub(crate) fn pull_all(&mut self) {
        for slot in 0..self.slots.len() {
            if let Some(process) = &mut self.slots[slot].process {
                process.node.pull();
            }
            self.run_actions(slot);
        }
    }

    pub(crate) fn pin(&mut self, slot: usize) {
        if let Some(process) = &mut self.slots[slot].process {
            process.node.begin_read();
            process.pinned = Some(process.region.clone());
        }
    }

    pub(crate) fn is_pinned(&self, slot: usize) -> bool {
        let process = self.slots[slot].process.as_ref();
        process.is_some_and(|process| process.pinned.is_some())
    }

    fn ask_outcomes(&mut self, slot: usize) {
        let unknown = self.slots[slot].unknown.clone();
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        for (node, number) in unknown {
            process.node.ask_outcome(node, number);
        }
    }
}

impl super::NodeProcess {
    /// Applies a record to the memory, its own or another's.
    pub(crate) fn change(&mut self, stamp: &Stamp, payload: &bytes::PayloadBytes) {
        bytes::apply(payload, &mut self.region);
        for (lock, _) in &stamp.written {
            self.last[lock.0 as usize] = Some(stamp.clone());
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
