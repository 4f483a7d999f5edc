//! A log that is written as raw bytes by a replica. Records are read from it; none are appended here.

use std::cell::RefCell;
use std::rc::Rc;

use netram_proto::id::Lsn;
use netram_proto::journal::{LogFile, LogSuperblock, SlotPair};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, IoError, LogError, LogState, Record, RecordKind,
    RecordLog, WaitError,
};
use netram_proto::wire::ChainPoint;

use crate::disk::SimFile;
use crate::log_reading::{link_at, read_records};

/// The log of a replica. Clones share it.
#[derive(Clone)]
pub(super) struct ReplicaLog(Rc<RefCell<State>>);

struct State {
    log: LogFile<SimFile>,
    slots: SlotPair,
    superblock: LogSuperblock,
    end: ChainPoint,
}

impl ReplicaLog {
    /// Opens the log and erases the bytes behind its valid records.
    pub(super) fn open(file: SimFile) -> Option<ReplicaLog> {
        let (log, slots, superblock) = LogFile::open(file).ok()?;
        let limit = superblock.head.lsn.plus(log.capacity());
        let scan = log.scan(superblock.head, limit, &mut |_| true);
        if scan.unreadable.is_some() {
            return None;
        }
        if log.proof_beyond(scan.end.lsn, limit).ok()? > scan.end.lsn {
            log.erase(scan.end.lsn, limit).ok()?;
        }
        log.sync().ok()?;
        let end = scan.end;
        Some(ReplicaLog(Rc::new(RefCell::new(State {
            log,
            slots,
            superblock,
            end,
        }))))
    }

    pub(super) fn capacity(&self) -> u64 {
        self.0.borrow().log.capacity()
    }

    pub(super) fn head(&self) -> ChainPoint {
        self.0.borrow().superblock.head
    }

    pub(super) fn end(&self) -> ChainPoint {
        self.0.borrow().end
    }

    pub(super) fn write(&self, at: Lsn, bytes: &[u8]) -> Result<(), IoError> {
        self.0.borrow().log.write(at, bytes)
    }

    pub(super) fn flush(&self, end: ChainPoint) -> Result<(), IoError> {
        let mut state = self.0.borrow_mut();
        state.log.sync()?;
        state.end = end;
        Ok(())
    }

    pub(super) fn restart(&self, start: ChainPoint) -> Result<(), IoError> {
        let mut state = self.0.borrow_mut();
        state.log.erase(start.lsn, start.lsn.plus(state.log.capacity()))?;
        state.log.sync()?;
        state.store(start, start.lsn)?;
        state.end = start;
        Ok(())
    }
}

impl State {
    fn store(&mut self, head: ChainPoint, stable: Lsn) -> Result<(), IoError> {
        let superblock = LogSuperblock {
            head,
            stable,
            ..self.superblock
        };
        self.log.store(&mut self.slots, &superblock)?;
        self.superblock = superblock;
        Ok(())
    }

    fn link_at(&self, lsn: Lsn) -> Result<ChainPoint, LogError> {
        if lsn == self.superblock.head.lsn {
            return Ok(self.superblock.head);
        }
        if lsn == self.end.lsn {
            return Ok(self.end);
        }
        if lsn < self.superblock.head.lsn || lsn > self.end.lsn {
            return Err(LogError::OutOfRange(lsn));
        }
        link_at(&self.log, lsn)
    }
}

impl RecordLog for ReplicaLog {
    fn append(
        &self,
        _: RecordKind,
        _: usize,
        _: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        Err(AppendError::Closed)
    }

    fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        Err(WaitError::Closed)
    }

    fn state(&self) -> LogState {
        let state = self.0.borrow();
        let end = state.end.lsn;
        LogState {
            head: state.superblock.head.lsn,
            stable: end,
            acked: end,
            tail: end,
            capacity: state.log.capacity(),
            payload_max: state.log.capacity() as usize / 2,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let state = self.0.borrow();
        let start = state.link_at(from)?;
        read_records(&state.log, start, state.end.lsn, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        let mut state = self.0.borrow_mut();
        let (link, end) = (state.link_at(head)?, state.end.lsn);
        state.store(link, end).map_err(LogError::Io)
    }
}
