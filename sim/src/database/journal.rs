//! A database's journals as one process sees them. Records that were waited for are held; recovery finds any
//! prefix of the others.

use std::rc::Rc;

use netram_proto::id::{Epoch, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_sqlite_machine::JournalSlots;

use super::contents::RECORD_BYTES;
use super::machine::{Hook, MachineHandle, die_if_dead, step};

/// Journal capacity in bytes; small, so that it is full now and then.
const CAPACITY: u64 = 400;
/// Maximum payload of a record in bytes; small, so that a change takes several records.
const PAYLOAD_MAX: usize = 17 + 10;

/// A process's lock on a journal, in one of the process's lives.
pub(super) struct JournalSlotLock {
    machine: MachineHandle,
    slot: usize,
    owner: (usize, u64),
}

impl Drop for JournalSlotLock {
    fn drop(&mut self) {
        let lock = &mut self.machine.borrow_mut().locks[self.slot];
        lock.take_if(|owner| *owner == self.owner);
    }
}

/// An open journal.
pub(super) struct DatabaseJournal {
    machine: MachineHandle,
    process: usize,
    slot: usize,
    _lock: Option<JournalSlotLock>,
}

impl DatabaseJournal {
    /// Opens a journal for a recovery, which no other process disturbs.
    pub(super) fn of_recovery(machine: &MachineHandle, process: usize, seat: usize) -> DatabaseJournal {
        DatabaseJournal {
            machine: Rc::clone(machine),
            process,
            slot: seat,
            _lock: None,
        }
    }

    fn step(&self) {
        step(&self.machine, self.process);
    }
}

/// All journals of a database.
pub(super) struct DatabaseJournals {
    pub(super) machine: MachineHandle,
    pub(super) process: usize,
}

/// No file descriptor is left for the journal.
#[derive(Debug)]
pub(super) struct NoDescriptorError;

impl JournalSlots for DatabaseJournals {
    type JournalSlotLock = JournalSlotLock;
    type Log = DatabaseJournal;
    type Error = NoDescriptorError;

    fn count(&self) -> usize {
        self.machine.borrow().logs.len()
    }

    fn lock(&self, seat: usize) -> Result<Option<JournalSlotLock>, NoDescriptorError> {
        step(&self.machine, self.process);
        let mut machine = self.machine.borrow_mut();
        if machine.refuses() {
            return Err(NoDescriptorError);
        }
        if machine.locks[seat].is_some() {
            return Ok(None);
        }
        let owner = (self.process, machine.processes[self.process].life);
        machine.locks[seat] = Some(owner);
        drop(machine);
        Ok(Some(JournalSlotLock {
            machine: Rc::clone(&self.machine),
            slot: seat,
            owner,
        }))
    }

    fn open(&self, seat: usize, lock: JournalSlotLock) -> Result<DatabaseJournal, NoDescriptorError> {
        step(&self.machine, self.process);
        {
            let mut machine = self.machine.borrow_mut();
            if machine.refuses() {
                return Err(NoDescriptorError);
            }
            let machine = &mut *machine;
            machine.logs[seat].recover(&mut machine.rng);
        }
        Ok(DatabaseJournal {
            machine: Rc::clone(&self.machine),
            process: self.process,
            slot: seat,
            _lock: Some(lock),
        })
    }
}

impl RecordLog for DatabaseJournal {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        self.step();
        let mut payload = vec![0; length];
        fill(&mut payload);
        let mut machine = self.machine.borrow_mut();
        let log = &mut machine.logs[self.slot];
        if log.broken {
            return Err(AppendError::Closed);
        }
        let (used, capacity) = (log.tail.0 - log.head.0, CAPACITY);
        if used + RECORD_BYTES + length as u64 > capacity {
            return Err(AppendError::Full { used, capacity });
        }
        let lsn = log.tail;
        log.tail = Lsn(lsn.0 + RECORD_BYTES + length as u64);
        log.records.push((lsn, kind, payload));
        Ok(CommitTicket { lsn, end: log.tail })
    }

    fn wait(&self, ticket: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        self.step();
        {
            let mut machine = self.machine.borrow_mut();
            let log = &mut machine.logs[self.slot];
            if log.broken {
                return Err(WaitError::Closed);
            }
            assert!(ticket.end <= log.tail);
            log.durable = log.durable.max(ticket.end);
        }
        let of_this = |(process, _): &mut (usize, Hook)| *process == self.process;
        let waiting = self.machine.borrow_mut().wait_hook.take_if(of_this);
        if let Some((_, hook)) = waiting {
            hook();
            die_if_dead(&self.machine, self.process);
        }
        self.step();
        Ok(CommitVotes::default())
    }

    fn state(&self) -> LogState {
        let machine = self.machine.borrow();
        let log = &machine.logs[self.slot];
        LogState {
            head: log.head,
            stable: log.durable,
            acked: log.durable,
            tail: log.tail,
            capacity: CAPACITY,
            payload_max: PAYLOAD_MAX,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let log = self.machine.borrow().logs[self.slot].clone();
        for (lsn, kind, payload) in log.records.iter().filter(|(lsn, ..)| *lsn >= from) {
            let record = Record {
                lsn: *lsn,
                next: Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64),
                epoch: Epoch(1),
                kind: *kind,
                payload,
            };
            if !each(record) {
                return Ok(*lsn);
            }
        }
        Ok(log.tail)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        self.step();
        let mut machine = self.machine.borrow_mut();
        let log = &mut machine.logs[self.slot];
        assert!(log.head <= head && head <= log.durable);
        log.head = head;
        log.records.retain(|(lsn, ..)| *lsn >= head);
        Ok(())
    }
}
