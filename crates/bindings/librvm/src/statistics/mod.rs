//! Statistics, and the record from which C reads them.

mod record;

use std::sync::Mutex;
use std::time::Duration;

use netram_journal::Journal;
use netram_proto::port::RecordLog;
use netram_rvm::Statistics;

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::Library;
use crate::lock;
use crate::log::LibraryLog;
use crate::record::{CRecord, OffsetRecord, Timeval};

pub(crate) use record::StatisticsRecord;

/// Upper bounds of the classes of flush times, in milliseconds.
const FLUSH_MS: [u64; 9] = [25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000];
/// Upper bounds of the classes of truncation times, in seconds.
const TRUNCATION_S: [u64; 4] = [1, 10, 100, 500];

/// Counters of the C interface itself; the others come from rvm.
#[derive(Clone, Copy, Debug)]
struct Sums {
    flush_calls: u64,
    flushes: [u64; 10],
    flush_time: Duration,
    truncate_calls: u64,
    truncations: [u64; 5],
    recoveries: u64,
}

#[derive(Debug)]
struct CallHistory {
    now: Sums,
    /// `now` and rvm's counters when a call last truncated the log.
    before: (Sums, Statistics),
    last_flush: Duration,
    last_truncation: Duration,
    log_percent_max: u64,
}

/// The counters of a process.
#[derive(Debug)]
pub(crate) struct CallCounts(Mutex<Option<Box<CallHistory>>>);

impl Sums {
    const NONE: Sums = Sums {
        flush_calls: 0,
        flushes: [0; 10],
        flush_time: Duration::ZERO,
        truncate_calls: 0,
        truncations: [0; 5],
        recoveries: 0,
    };
}

impl CallHistory {
    fn new() -> CallHistory {
        CallHistory {
            now: Sums::NONE,
            before: (Sums::NONE, Statistics::default()),
            last_flush: Duration::ZERO,
            last_truncation: Duration::ZERO,
            log_percent_max: 0,
        }
    }

    fn flushed(&mut self, taken: Duration) {
        self.now.flushes[class(&FLUSH_MS, taken.as_millis())] += 1;
        self.now.flush_time += taken;
    }
}

impl CallCounts {
    pub(crate) const fn new() -> CallCounts {
        CallCounts(Mutex::new(None))
    }

    fn with<R>(&self, act: impl FnOnce(&mut CallHistory) -> R) -> R {
        act(lock(&self.0).get_or_insert_with(|| Box::new(CallHistory::new())))
    }

    /// Counts a recovery of the log.
    pub(crate) fn recovered(&self) {
        self.with(|kept| kept.now.recoveries += 1);
    }

    /// Counts a commit that waited for safety.
    pub(crate) fn flushed(&self, taken: Duration) {
        self.with(|kept| kept.flushed(taken));
    }

    /// Counts a call of `rvm_flush`.
    pub(crate) fn called_flush(&self, taken: Duration) {
        self.with(|kept| {
            kept.flushed(taken);
            kept.now.flush_calls += 1;
            kept.last_flush = taken;
        });
    }

    /// Counts a call of `rvm_truncate`.
    pub(crate) fn truncated(&self, taken: Duration, log: &LibraryLog) {
        self.with(|kept| {
            // Read under the lock: otherwise one of two threads might replace newer counters by older ones.
            let statistics = log.memory.statistics();
            kept.now.truncate_calls += 1;
            kept.now.truncations[class(&TRUNCATION_S, u128::from(taken.as_secs()))] += 1;
            kept.last_truncation = taken;
            kept.before = (kept.now, statistics);
        });
    }
}

/// Class of a value: the first whose upper bound it does not exceed, or the last.
fn class(bounds: &[u64], value: u128) -> usize {
    bounds
        .iter()
        .position(|bound| value <= u128::from(*bound))
        .unwrap_or(bounds.len())
}

impl Library {
    /// `rvm_statistics`.
    pub(crate) fn statistics(&self, from_heap: bool) -> Result<StatisticsRecord, CallFailure> {
        self.ready()?;
        self.with_log(|log| {
            let percent = percent_used(log.memory.log());
            let uncommitted = self.transactions.open() as u64;
            Ok(self.counts.with(|kept| {
                // Read after the counters at the last truncation, which are subtracted.
                let statistics = log.memory.statistics();
                kept.log_percent_max = kept.log_percent_max.max(percent);
                let mut record = StatisticsRecord::fresh(from_heap);
                fill(&mut record, kept, &statistics);
                record.n_uncommit = uncommitted;
                record.log_dev_cur = percent;
                record
            }))
        })
    }
}

fn percent_used(journal: &Journal) -> u64 {
    let state = journal.state();
    state.tail.since(state.head).saturating_mul(100) / state.capacity.max(1)
}

/// Number of lazy commits that are spooled and in no record yet.
pub(crate) fn spooled(now: &Statistics) -> u64 {
    now.spooled_commits
        .saturating_sub(now.commits_merged + now.spool_records)
}

fn fill(record: &mut StatisticsRecord, kept: &CallHistory, now: &Statistics) {
    let (sums, before) = &kept.before;
    fill_since(record, &kept.now, sums, now, before);
    record.n_no_flush = spooled(now);
    record.last_flush_time = kept.last_flush.as_millis() as i64;
    record.last_truncation_time = kept.last_truncation.as_secs() as i64;
    fill_totals(record, &kept.now, now);
    record.log_dev_max = kept.log_percent_max;
}

fn fill_since(
    record: &mut StatisticsRecord,
    sums: &Sums,
    sums_before: &Sums,
    now: &Statistics,
    before: &Statistics,
) {
    record.n_abort = now.aborts - before.aborts;
    record.n_flush_commit = now.flush_commits - before.flush_commits;
    record.n_no_flush_commit = now.lazy_commits - before.lazy_commits;
    record.n_truncation_wait = now.full_stalls - before.full_stalls;
    record.n_rvm_flush = sums.flush_calls - sums_before.flush_calls;
    record.log_written = offset(now.bytes_logged - before.bytes_logged);
    record.range_overlap = offset(now.bytes_saved_within - before.bytes_saved_within);
    record.trans_overlap = offset(now.bytes_saved_between - before.bytes_saved_between);
    record.n_range_elim = now.ranges_merged - before.ranges_merged;
    record.n_trans_elim = now.ranges_dropped - before.ranges_dropped;
    record.n_trans_coalesced = now.commits_merged - before.commits_merged;
    record.flush_time = timeval(sums.flush_time - sums_before.flush_time);
    record.flush_times = less(&sums.flushes, &sums_before.flushes);
    record.n_flush = record.flush_times.iter().sum();
    record.range_lengths = less(&now.range_lengths, &before.range_lengths);
    record.range_elims = less(&now.merged_within, &before.merged_within);
    record.trans_elims = less(&now.dropped_between, &before.dropped_between);
    record.range_overlaps = less(&now.saved_within, &before.saved_within);
    record.trans_overlaps = less(&now.saved_between, &before.saved_between);
}

fn fill_totals(record: &mut StatisticsRecord, sums: &Sums, now: &Statistics) {
    record.tot_abort = now.aborts;
    record.tot_flush_commit = now.flush_commits;
    record.tot_no_flush_commit = now.lazy_commits;
    record.tot_rvm_flush = sums.flush_calls;
    record.tot_log_written = offset(now.bytes_logged);
    record.tot_range_overlap = offset(now.bytes_saved_within);
    record.tot_trans_overlap = offset(now.bytes_saved_between);
    record.tot_range_elim = now.ranges_merged;
    record.tot_trans_elim = now.ranges_dropped;
    record.tot_trans_coalesced = now.commits_merged;
    record.tot_rvm_truncate = sums.truncate_calls;
    record.tot_async_truncation = now.background_truncations;
    record.tot_sync_truncation = now.full_stalls;
    record.tot_truncation_wait = now.full_stalls;
    record.tot_recovery = sums.recoveries;
    record.tot_flush_time = timeval(sums.flush_time);
    record.tot_truncation_time = timeval(Duration::from_nanos(now.truncation_ns));
    record.tot_truncation_times = sums.truncations;
    record.tot_flush_times = sums.flushes;
    record.tot_flush = sums.flushes.iter().sum();
    record.tot_range_lengths = now.range_lengths;
    record.tot_range_elims = now.merged_within;
    record.tot_trans_elims = now.dropped_between;
    record.tot_range_overlaps = now.saved_within;
    record.tot_trans_overlaps = now.saved_between;
    record.tot_trans_coalesces = now.record_commits;
}

fn less<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u64; N] {
    std::array::from_fn(|at| now[at] - before[at])
}

fn offset(bytes: u64) -> OffsetRecord {
    OffsetRecord { high: 0, low: bytes }
}

fn timeval(time: Duration) -> Timeval {
    Timeval {
        seconds: time.as_secs() as i64,
        microseconds: i64::from(time.subsec_micros()),
    }
}

/// Error for a program that was compiled with another `rvm_statistics.h`.
pub(crate) fn version_skew() -> CallFailure {
    CallFailure::new(
        ReturnCode::StatisticsVersionSkew,
        "the program was compiled with another version of rvm_statistics.h; compile it with this library's",
    )
}
