//! Counts what commits log, as the table of OSDI'94 does: ranges, unique bytes, message bytes, pages.
//!
//! [`CountingLog`] is a log that looks at the records on their way to another: what is counted is what is
//! really logged, the store's own bookkeeping and the heap's included. Looking costs time; it is switched on
//! for the transactions that are to be counted.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_proto::id::Lsn;
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_rvm::record::{decode, is_transaction};
use serde::Serialize;

/// Bytes of a range's header in the prototype of OSDI'94, when the range before is near.
pub const SMALL_HEADER_BYTES: u64 = 4;

/// What was logged while the tally was on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogCounts {
    /// Records.
    pub records: u64,
    /// Ranges in them: those of a transaction sorted and merged.
    pub ranges: u64,
    /// Bytes of the ranges. A byte that one transaction changes often counts once.
    pub bytes: u64,
    /// Bytes of the records' payloads, headers of ranges included.
    pub payload_bytes: u64,
    /// What they would be with headers of four bytes.
    pub small_header_bytes: u64,
    /// Pages of 4 KiB with a byte that changed, each once.
    pub pages_4k: u64,
    /// Pages of 8 KiB.
    pub pages_8k: u64,
}

/// A log that counts.
#[derive(Debug)]
pub struct CountingLog<L> {
    log: L,
    on: AtomicBool,
    state: Mutex<CountState>,
}

#[derive(Debug, Default)]
struct CountState {
    tallies: LogCounts,
    /// Segment and page.
    pages: BTreeSet<(u32, u64)>,
}

impl<L> CountingLog<L> {
    /// Counts nothing until it is told to.
    pub fn new(log: L) -> CountingLog<L> {
        CountingLog {
            log,
            on: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Counts from zero.
    pub fn start(&self) {
        *self.lock() = CountState::default();
        self.on.store(true, Ordering::Release);
    }

    /// Counts no more; returns what was counted.
    pub fn stop(&self) -> LogCounts {
        self.on.store(false, Ordering::Release);
        let CountState { tallies, pages } = &*self.lock();
        let doubled: BTreeSet<(u32, u64)> =
            pages.iter().map(|(segment, page)| (*segment, page / 2)).collect();
        LogCounts {
            small_header_bytes: tallies.bytes + SMALL_HEADER_BYTES * tallies.ranges,
            pages_4k: pages.len() as u64,
            pages_8k: doubled.len() as u64,
            ..*tallies
        }
    }

    /// The log below.
    pub fn log(&self) -> &L {
        &self.log
    }

    fn lock(&self) -> MutexGuard<'_, CountState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, kind: RecordKind, payload: &[u8]) {
        let CountState { tallies, pages } = &mut *self.lock();
        tallies.records += 1;
        tallies.payload_bytes += payload.len() as u64;
        let changes = decode(kind, payload).expect("recoverable memory encoded the record itself, just now");
        for range in changes.ranges() {
            tallies.ranges += 1;
            tallies.bytes += range.bytes.len() as u64;
            let last = range.end().saturating_sub(1);
            pages.extend((range.offset / 4096..=last / 4096).map(|page| (range.segment, page)));
        }
    }
}

impl<L: RecordLog> RecordLog for CountingLog<L> {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        if !is_transaction(kind) || !self.on.load(Ordering::Acquire) {
            return self.log.append(kind, length, fill);
        }
        self.log.append(kind, length, &mut |payload| {
            fill(payload);
            self.count(kind, payload);
        })
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        self.log.wait(ticket, durability)
    }

    fn state(&self) -> LogState {
        self.log.state()
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        self.log.read(from, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        self.log.trim(head)
    }
}
