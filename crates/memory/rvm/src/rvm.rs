//! The central type: opening with recovery, flushing, truncation, closing. Mapping is in `map.rs`.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;

use netram_proto::id::Lsn;
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{CommitVotes, Durability, LogState, RecordLog};

use crate::error::{FlushError, RvmCloseError, RvmOpenError, SegmentError, TruncateError};
use crate::limit::POOL_TRANSACTIONS_MAX;
use crate::options::{RestoreMode, RvmOptions, TruncationPolicy};
use crate::record::range_bytes_max;
use crate::segments::{Segments, check_name, segment_io};
use crate::spool::Spool;
use crate::state::RvmState;
use crate::stats::{Counters, Statistics, add};
use crate::storage::{SegmentAllocation, SegmentStorage};
use crate::sync::{TruncationSignal, lock};
use crate::table::SegmentTable;
use crate::truncate::{RecoveryReport, TruncateProgress, Truncator};
use crate::txn::Transaction;

/// Recoverable memory over one log.
///
/// Threads share it by reference or in an `Arc`. Dropping it ends the truncation thread; live transactions
/// and regions keep working.
pub struct Rvm<L: RecordLog, S: SegmentStorage> {
    pub(crate) shared: Arc<RvmState<L, S>>,
    thread: Thread<L, S>,
}

/// The truncation thread, which ends when the `Rvm` is dropped.
struct Thread<L: RecordLog, S: SegmentStorage> {
    shared: Arc<RvmState<L, S>>,
    handle: Mutex<Option<JoinHandle<()>>>,
}

/// One segment that the log knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The segment's path.
    pub path: String,
    /// Its number in the log's records.
    pub index: u32,
    /// Its length in bytes when last mapped.
    pub length: u64,
}

/// Description of a mapped region, for users and tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionStatus {
    /// The segment's path.
    pub path: String,
    /// Where in the segment it begins.
    pub offset: u64,
    /// Bytes mapped.
    pub length: usize,
    /// Open transactions with ranges in it.
    pub transactions: usize,
}

/// A snapshot of the log, segments, regions and transactions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RvmStatus {
    /// State of the log.
    pub log: LogState,
    /// Paths of the segments that the log knows, with their lengths.
    pub segments: Vec<(String, u64)>,
    /// The regions mapped.
    pub regions: Vec<RegionStatus>,
    /// Transactions begun and not ended.
    pub open_transactions: usize,
    /// Lazy commits that are in the spool.
    pub spooled_commits: u64,
    /// Bytes they count for in the spool: an upper bound on the record they will make.
    pub spooled_bytes: usize,
    /// Whether the truncation thread runs.
    pub truncation_thread: bool,
}

fn threshold_bytes(capacity: u64, percent: u8) -> u64 {
    (u128::from(capacity) * u128::from(percent) / 100) as u64
}

static OPENINGS: AtomicU64 = AtomicU64::new(1);

impl<L: RecordLog, S: SegmentStorage> Rvm<L, S> {
    /// Opens recoverable memory over a recovered log. Every transaction in the log is applied to its segment,
    /// unless [`TruncationPolicy::Elsewhere`] is chosen; memory mapped afterwards shows what was committed.
    ///
    /// An error or a crash during the opening loses nothing; the next opening repeats the work.
    ///
    /// # Errors
    ///
    /// [`RvmOpenError`] if the options or the segment table cannot be used, or recovery stopped.
    pub fn open(log: L, storage: S, options: RvmOptions) -> Result<Rvm<L, S>, RvmOpenError> {
        let percent = options.truncation_threshold_percent;
        if !(1..=95).contains(&percent) {
            return Err(RvmOpenError::Threshold { percent });
        }
        let table = SegmentTable::read(storage.table(), options.journal, storage.directory())?;
        let state = log.state();
        let mut shared = RvmState {
            recovery: RecoveryReport::default(),
            number: OPENINGS.fetch_add(1, Ordering::Relaxed),
            payload_max: state.payload_max,
            capacity: state.capacity,
            truncation: options.truncation,
            spool: Spool::new(0),
            range_max: range_bytes_max(state.payload_max),
            counters: Counters::default(),
            threshold: AtomicU64::new(threshold_bytes(state.capacity, percent)),
            head: AtomicU64::new(state.head.0),
            last: Mutex::new(None),
            truncator: Mutex::new(Truncator::new(options.truncation_batch_bytes)),
            segments: Mutex::new(Segments::new(table, &options)),
            regions: Mutex::new(Vec::new()),
            pool: Mutex::new(Vec::with_capacity(POOL_TRANSACTIONS_MAX)),
            open_transactions: AtomicUsize::new(0),
            signal: TruncationSignal::default(),
            threaded: AtomicBool::new(false),
            truncation_requested: AtomicBool::new(false),
            log,
            storage,
        };
        lock(&shared.truncator).sync_last = true;
        if shared.truncation == TruncationPolicy::Here {
            if state.head < state.tail {
                let judged = lock(&shared.segments).judge_all(&shared.storage, state.tail);
                judged.map_err(TruncateError::from)?;
            }
            shared.truncate_to(state.tail)?;
        }
        // Recovery's buffers may be large; later rounds of truncation allocate their own.
        let total = std::mem::replace(
            &mut *lock(&shared.truncator),
            Truncator::new(options.truncation_batch_bytes),
        )
        .total;
        shared.recovery = RecoveryReport {
            start: state.head,
            end: state.tail,
            ..total
        };
        shared.resize_spool(options.spool_bytes);
        let shared = Arc::new(shared);
        let thread = Thread {
            shared: shared.clone(),
            handle: Mutex::new(None),
        };
        Ok(Rvm { shared, thread })
    }

    /// Applies every commit to its segment, ends the truncation thread and returns the log, for the caller to
    /// close. Mapped regions keep their memory.
    ///
    /// Afterwards the segments contain everything, and their stamps say so: segments and log can be moved,
    /// copied and replaced. With [`TruncationPolicy::Elsewhere`] commits only become as safe as
    /// [`Durability::Remote`]. A region that is still mapped shows its pages as described at
    /// [`Region::keep_unmapped`].
    ///
    /// [`Region::keep_unmapped`]: crate::Region::keep_unmapped
    ///
    /// # Errors
    ///
    /// [`RvmCloseError`] and the `Rvm`: transactions are open, or commits cannot be made safe or applied.
    #[allow(clippy::result_large_err, reason = "a refused close returns the memory")]
    pub fn close(self) -> Result<L, (RvmCloseError, Rvm<L, S>)> {
        if let Err(error) = self.settle() {
            return Err((error, self));
        }
        if self.shared.truncation == TruncationPolicy::Here
            && let Err(error) = self.shared.apply_all()
        {
            return Err((error.into(), self));
        }
        Ok(self.end())
    }

    /// Closes like [`Rvm::close`], but applies nothing: for a program that reads its log's records when it
    /// starts again. The segments' stamps say that this log has changes they lack. No other log can use them
    /// until this one was opened and closed.
    ///
    /// # Errors
    ///
    /// As [`Rvm::close`].
    #[allow(clippy::result_large_err, reason = "a refused close returns the memory")]
    pub fn close_unapplied(self) -> Result<L, (RvmCloseError, Rvm<L, S>)> {
        match self.settle() {
            Ok(()) => Ok(self.end()),
            Err(error) => Err((error, self)),
        }
    }

    /// Makes every commit safe. Fails while a transaction is alive.
    fn settle(&self) -> Result<(), RvmCloseError> {
        let transactions = self.shared.open_transactions.load(Ordering::Acquire);
        if transactions > 0 {
            return Err(RvmCloseError::Uncommitted { transactions });
        }
        self.flush(Durability::Remote)?;
        Ok(())
    }

    /// Ends the truncation thread.
    fn end(self) -> L {
        let Rvm { shared, thread } = self;
        drop(thread);
        let mut shared = shared;
        loop {
            match Arc::try_unwrap(shared) {
                Ok(alone) => return alone.log,
                // Another thread is still dropping a transaction that has already been counted as ended.
                Err(again) => shared = again,
            }
            std::thread::yield_now();
        }
    }

    /// Report of the recovery at the opening.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.shared.recovery
    }

    /// The log underneath.
    pub fn log(&self) -> &L {
        &self.shared.log
    }

    /// The storage underneath.
    pub fn storage(&self) -> &S {
        &self.shared.storage
    }

    /// Creates a segment of zeros. The file must not exist.
    ///
    /// # Errors
    ///
    /// [`SegmentError`] if the file exists, or cannot be created with this length.
    pub fn create_segment(
        &self,
        path: &str,
        length: u64,
        allocation: SegmentAllocation,
    ) -> Result<(), SegmentError> {
        check_name(path)?;
        let created = self.shared.storage.create_segment(path, length, allocation);
        created.map_err(|cause| {
            let name = path.to_owned();
            match cause.errno {
                2 => SegmentError::NoDirectory { path: name },
                // EFBIG
                27 => SegmentError::TooLong { path: name, length },
                _ => segment_io(path, cause),
            }
        })
    }

    /// Begins a transaction.
    pub fn begin(&self, mode: RestoreMode) -> Transaction<L, S> {
        Transaction::begin(&self.shared, mode)
    }

    /// Waits until every commit so far, lazy ones too, is as safe as requested. Spooled commits are logged
    /// first; [`Durability::Lazy`] does only that.
    ///
    /// # Errors
    ///
    /// [`FlushError`] if the spool cannot be logged, or it is unknown whether the records are safe.
    pub fn flush(&self, durability: Durability) -> Result<CommitVotes, FlushError> {
        add(&self.shared.counters.flush_calls, 1);
        self.shared.drain_spool()?;
        let last = *lock(&self.shared.last);
        match last {
            Some(ticket) => self
                .shared
                .log
                .wait(ticket, durability)
                .map_err(FlushError::Unknown),
            None => Ok(CommitVotes::default()),
        }
    }

    /// Applies every commit so far to the segments and removes it from the log; waits for the disk.
    ///
    /// # Errors
    ///
    /// [`TruncateError`]; the log keeps every record that was not applied.
    pub fn truncate(&self) -> Result<(), TruncateError> {
        add(&self.shared.counters.truncate_calls, 1);
        self.shared.truncates_here()?;
        self.shared.drain_spool()?;
        let last = *lock(&self.shared.last);
        self.shared.truncate_to(last.map_or(Lsn(0), |ticket| ticket.end))
    }

    /// Performs one bounded step of truncation, for programs such as the simulator that run without the
    /// thread. Never waits for the log.
    ///
    /// # Errors
    ///
    /// As [`Rvm::truncate`]; the next step begins again at the log's head.
    pub fn truncate_step(&self) -> Result<TruncateProgress, TruncateError> {
        self.shared.step()
    }

    /// Keeps up to `bytes` of lazy commits in memory from now on, so that later commits can replace their
    /// values before anything is logged. Zero turns this off.
    ///
    /// The spool is logged as one record before the next commit that waits; at `flush`, `truncate` and
    /// `close`; when the segment is mapped again; when it exceeds `bytes`; and about every second by the
    /// truncation thread, if that runs. It occupies up to four times its bytes of memory, and is capped at
    /// one record and at a quarter of the log.
    pub fn set_spool_bytes(&self, bytes: usize) {
        self.shared.resize_spool(bytes);
    }

    /// Plants a fault in the spool, for the simulator.
    pub fn plant(&self, planted: FaultSwitch) {
        self.shared.spool.plant(planted);
    }

    /// Sets the percentage of the log at which truncation begins. From 100 on it never begins by itself: a
    /// commit that finds the log full requests it, and the thread performs it if it runs.
    pub fn set_truncation_threshold(&self, percent: u8) {
        let bytes = match percent {
            0..100 => threshold_bytes(self.shared.log.state().capacity, percent),
            _ => u64::MAX,
        };
        self.shared.threshold.store(bytes, Ordering::Relaxed);
    }

    /// Whether the log is fuller than the threshold.
    pub fn wants_truncation(&self) -> bool {
        let last = *lock(&self.shared.last);
        last.is_some_and(|ticket| self.shared.is_over_threshold(ticket.end))
    }

    /// Starts the thread that truncates in the background. Does nothing if the thread already runs.
    ///
    /// # Errors
    ///
    /// The system's error if it cannot start a thread.
    pub fn start_truncation(&self) -> std::io::Result<()>
    where
        L: Send + Sync + 'static,
        S: Send + Sync + 'static,
        S::File: Send + Sync,
    {
        let mut thread = lock(&self.thread.handle);
        if thread.is_none() {
            *thread = Some(crate::background::start(&self.shared)?);
        }
        Ok(())
    }

    /// The segments that the log knows, mapped or not.
    pub fn segments(&self) -> Vec<SegmentInfo> {
        let segments = lock(&self.shared.segments);
        let entries = segments.entries().iter().map(|entry| SegmentInfo {
            path: entry.path.clone(),
            index: entry.index,
            length: entry.length,
        });
        entries.collect()
    }

    /// Returns a snapshot of the log, segments, regions and transactions.
    pub fn query(&self) -> RvmStatus {
        let shared = &*self.shared;
        let regions = lock(&shared.regions);
        let regions = regions
            .iter()
            .filter_map(Weak::upgrade)
            .map(|region| RegionStatus {
                path: region.path.to_string(),
                offset: region.base,
                length: region.length,
                transactions: region.transactions.load(Ordering::Acquire),
            });
        let regions = regions.collect();
        let segments = lock(&shared.segments);
        let (spooled_commits, spooled_bytes) = shared.spool.lock().size();
        RvmStatus {
            log: shared.log.state(),
            segments: segments
                .entries()
                .iter()
                .map(|entry| (entry.path.clone(), entry.length))
                .collect(),
            regions,
            spooled_commits,
            spooled_bytes,
            open_transactions: shared.open_transactions.load(Ordering::Relaxed),
            truncation_thread: shared.threaded.load(Ordering::Relaxed),
        }
    }

    /// Counters since the opening.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.read()
    }
}

impl<L: RecordLog, S: SegmentStorage> Drop for Thread<L, S> {
    fn drop(&mut self) {
        if let Some(thread) = lock(&self.handle).take() {
            self.shared.signal.stop();
            // The panic hook has already reported a panic of the thread; a drop must not add a second.
            let _ = thread.join();
        }
        if !std::thread::panicking() {
            // Later commits of live transactions are logged at once, because nothing would flush the spool.
            self.shared.resize_spool(0);
        }
    }
}

impl<L: RecordLog, S: SegmentStorage> std::fmt::Debug for Rvm<L, S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Rvm")
            .field("recovery", &self.shared.recovery)
            .finish_non_exhaustive()
    }
}
