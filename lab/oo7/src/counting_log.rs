//! Counts the ranges, unique bytes, message bytes and pages that commits log, as the table of OSDI'94 does.
//!
//! [`CountingLog`] inspects the records on their way to another log. It counts everything that is logged,
//! including the bookkeeping of store and heap. Counting costs time, so it is switched on only for the
//! transactions of interest.

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

/// Bytes of a range's header in the prototype of OSDI'94 when the previous range is near.
pub const SMALL_HEADER_BYTES: u64 = 4;

/// Counts of logged records and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogCounts {
    /// Number of records.
    pub records: u64,
    /// Number of ranges in them; those of a transaction are sorted and merged.
    pub ranges: u64,
    /// Bytes of the ranges. A byte that a transaction changes several times counts once.
    pub bytes: u64,
    /// Bytes of the records' payloads, including headers of ranges.
    pub payload_bytes: u64,
    /// Payload bytes with headers of [`SMALL_HEADER_BYTES`].
    pub small_header_bytes: u64,
    /// Number of distinct changed pages of 4 KiB.
    pub pages_4k: u64,
    /// Number of distinct changed pages of 8 KiB.
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
    /// Segment and page number of each changed page.
    pages: BTreeSet<(u32, u64)>,
}

impl<L> CountingLog<L> {
    /// A log that counts nothing before [`CountingLog::start`].
    pub fn new(log: L) -> CountingLog<L> {
        CountingLog {
            log,
            on: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Starts counting from zero.
    pub fn start(&self) {
        *self.lock() = CountState::default();
        self.on.store(true, Ordering::Release);
    }

    /// Stops counting; returns the counts.
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

    /// The inner log.
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
