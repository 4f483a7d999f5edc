//! A journal in memory. A crash keeps every record that was waited for, and a given number of the others.

use std::sync::{Arc, Mutex};

use netram_proto::id::{Epoch, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};

#[derive(Clone, Default)]
struct Inside {
    records: Vec<(Lsn, RecordKind, Vec<u8>)>,
    head: Lsn,
    tail: Lsn,
    waited: Lsn,
    closed: bool,
    /// Number of records accepted until appends fail.
    left: Option<u64>,
    trims: bool,
}

/// A handle; clones share one journal.
#[derive(Clone)]
pub(crate) struct MemoryLog {
    inside: Arc<Mutex<Inside>>,
    capacity: u64,
}

/// Length of a record without its payload.
const RECORD_BYTES: u64 = 40;

impl MemoryLog {
    pub(crate) fn new(capacity: u64) -> MemoryLog {
        MemoryLog {
            inside: Arc::new(Mutex::new(Inside {
                trims: true,
                ..Inside::default()
            })),
            capacity,
        }
    }

    /// The journal as found after a crash: every record that was waited for, and the first `more` of the
    /// others.
    pub(crate) fn crash(&self, more: usize) -> MemoryLog {
        let mut inside = self.inside.lock().unwrap().clone();
        let held = { inside.records.iter() }
            .filter(|(lsn, ..)| *lsn < inside.waited)
            .count();
        inside.records.truncate(held + more);
        let end =
            |(lsn, _, payload): &(Lsn, RecordKind, Vec<u8>)| Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64);
        inside.tail = inside.records.last().map_or(inside.head, end);
        inside.waited = inside.tail;
        (inside.left, inside.trims) = (None, true);
        MemoryLog {
            inside: Arc::new(Mutex::new(inside)),
            capacity: self.capacity,
        }
    }

    /// The journal cut at `end`, although later records were waited for.
    pub(crate) fn cut(&self, end: Lsn) -> MemoryLog {
        self.inside.lock().unwrap().waited = end;
        self.crash(0)
    }

    /// Accepts `records` more records. Without `trims`, trimming has no effect from now on.
    pub(crate) fn stop_after(&self, records: u64, trims: bool) {
        let mut inside = self.inside.lock().unwrap();
        (inside.left, inside.trims) = (Some(records), trims);
    }

    /// Closes the journal, or opens it again.
    pub(crate) fn close(&self, closed: bool) {
        self.inside.lock().unwrap().closed = closed;
    }

    /// Number of records that were not waited for.
    pub(crate) fn open_records(&self) -> usize {
        let inside = self.inside.lock().unwrap();
        { inside.records.iter() }
            .filter(|(lsn, ..)| *lsn >= inside.waited)
            .count()
    }

    /// All records ever appended, including trimmed ones.
    pub(crate) fn records(&self) -> Vec<(Lsn, RecordKind, Vec<u8>)> {
        self.inside.lock().unwrap().records.clone()
    }
}

impl RecordLog for MemoryLog {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        let mut inside = self.inside.lock().unwrap();
        if inside.closed {
            return Err(AppendError::Closed);
        }
        if let Some(left) = &mut inside.left {
            *left = left.checked_sub(1).ok_or(AppendError::Closed)?;
        }
        let bytes = RECORD_BYTES + length as u64;
        let used = inside.tail.0 - inside.head.0;
        if used + bytes > self.capacity {
            return Err(AppendError::Full {
                used,
                capacity: self.capacity,
            });
        }
        let mut payload = vec![0; length];
        fill(&mut payload);
        let lsn = inside.tail;
        inside.tail = Lsn(lsn.0 + bytes);
        inside.records.push((lsn, kind, payload));
        Ok(CommitTicket {
            lsn,
            end: inside.tail,
        })
    }

    fn wait(&self, ticket: CommitTicket, _durability: Durability) -> Result<CommitVotes, WaitError> {
        let mut inside = self.inside.lock().unwrap();
        assert!(ticket.end <= inside.tail);
        inside.waited = inside.waited.max(ticket.end);
        Ok(CommitVotes::default())
    }

    fn state(&self) -> LogState {
        let inside = self.inside.lock().unwrap();
        LogState {
            head: inside.head,
            stable: inside.waited,
            acked: inside.waited,
            tail: inside.tail,
            capacity: self.capacity,
            payload_max: 600,
        }
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let inside = self.inside.lock().unwrap().clone();
        let mut at = from;
        for (lsn, kind, payload) in inside.records.iter().filter(|(lsn, ..)| *lsn >= from) {
            if *lsn >= inside.waited {
                break;
            }
            let next = Lsn(lsn.0 + RECORD_BYTES + payload.len() as u64);
            at = next;
            let record = Record {
                lsn: *lsn,
                next,
                epoch: Epoch(1),
                kind: *kind,
                payload,
            };
            if !each(record) {
                return Ok(*lsn);
            }
        }
        Ok(at.max(if inside.records.is_empty() {
            inside.tail
        } else {
            at
        }))
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        let mut inside = self.inside.lock().unwrap();
        if !inside.trims {
            return Err(LogError::Closed);
        }
        assert!(
            inside.head <= head && head <= inside.waited,
            "only stable records are trimmed"
        );
        inside.head = head;
        Ok(())
    }
}
