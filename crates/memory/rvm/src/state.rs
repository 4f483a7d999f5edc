//! State shared by the `Rvm`, its transactions and the truncation thread, and how a full log gets room.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Weak};

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, CommitTicket, Durability, RecordLog};

use crate::buffers::TransactionBuffers;
use crate::error::{FlushError, TruncateError};
use crate::limit::POOL_TRANSACTIONS_MAX;
use crate::options::TruncationPolicy;
use crate::region::RegionMapping;
use crate::segments::{SegmentMark, Segments};
use crate::spool::{Spool, SpoolContents};
use crate::stats::{Counters, add};
use crate::storage::SegmentStorage;
use crate::sync::{TruncationAnswer, TruncationSignal, lock};
use crate::truncate::{RecoveryReport, TruncateContext, TruncateProgress, Truncator};

/// State shared by the `Rvm`, its transactions and the truncation thread.
pub(crate) struct RvmState<L: RecordLog, S: SegmentStorage> {
    pub(crate) log: L,
    pub(crate) storage: S,
    /// Report of the recovery at the opening.
    pub(crate) recovery: RecoveryReport,
    /// Number of this opening, to recognise regions of another one.
    pub(crate) number: u64,
    pub(crate) payload_max: usize,
    /// Bytes of records that the log can hold.
    pub(crate) capacity: u64,
    pub(crate) truncation: TruncationPolicy,
    /// Longest range that can be declared: it fits a record, and 32 bits.
    pub(crate) range_max: usize,
    pub(crate) counters: Counters,
    /// Bytes of log in use at which truncation begins.
    pub(crate) threshold: AtomicU64,
    /// The log's head as last seen, so that a commit need not query it.
    pub(crate) head: AtomicU64,
    pub(crate) last: Mutex<Option<CommitTicket>>,
    /// Lazy commits that are not logged yet. Lock order: regions, spool, log.
    pub(crate) spool: Spool,
    pub(crate) truncator: Mutex<Truncator<S::File>>,
    pub(crate) segments: Mutex<Segments<S::File>>,
    /// All regions; dropped ones are removed at the next mapping.
    pub(crate) regions: Mutex<Vec<Weak<RegionMapping>>>,
    pub(crate) pool: Mutex<Vec<TransactionBuffers>>,
    pub(crate) open_transactions: AtomicUsize,
    pub(crate) signal: TruncationSignal,
    /// The truncation thread is running.
    pub(crate) threaded: AtomicBool,
    /// Truncation was requested and has not begun.
    pub(crate) truncation_requested: AtomicBool,
}

/// Why nothing was appended. The log is unchanged.
#[derive(Debug)]
pub(crate) enum NoRoom {
    /// The log is full and truncation could not make room.
    Full {
        used: u64,
        capacity: u64,
        cause: Option<TruncateError>,
    },
    /// The log refused the record for another reason than its size.
    Refused(AppendError),
}

impl<L: RecordLog, S: SegmentStorage> RvmState<L, S> {
    pub(crate) fn head(&self) -> Lsn {
        Lsn(self.head.load(Ordering::Acquire))
    }

    pub(crate) fn is_over_threshold(&self, end: Lsn) -> bool {
        end.since(self.head()) > self.threshold.load(Ordering::Relaxed)
    }

    /// Records that a commit's record is in the log.
    pub(crate) fn committed(&self, ticket: CommitTicket) {
        {
            let mut last = lock(&self.last);
            if last.is_none_or(|last| last.end < ticket.end) {
                *last = Some(ticket);
            }
        }
        let wanted = self.threaded.load(Ordering::Relaxed)
            && self.is_over_threshold(ticket.end)
            && self.truncation == TruncationPolicy::Here;
        if wanted && !self.truncation_requested.swap(true, Ordering::AcqRel) {
            self.signal.request();
        }
    }

    /// Takes the buffers of an ended transaction for reuse.
    pub(crate) fn reuse(&self, mut buffers: TransactionBuffers) {
        self.open_transactions.fetch_sub(1, Ordering::Relaxed);
        if buffers.clear() {
            let mut pool = lock(&self.pool);
            if pool.len() < POOL_TRANSACTIONS_MAX {
                pool.push(buffers);
            }
        }
    }

    /// Calls `attempt`, which appends and returns with no lock held, and makes room in a full log as often as
    /// that frees something.
    pub(crate) fn with_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AppendError>,
    ) -> Result<T, NoRoom> {
        loop {
            let head = self.head();
            let (used, capacity) = match attempt() {
                Ok(done) => return Ok(done),
                Err(AppendError::Full { used, capacity }) => (used, capacity),
                Err(error) => return Err(NoRoom::Refused(error)),
            };
            let cause = match self.make_room(head) {
                Ok(true) => continue,
                Ok(false) => None,
                Err(cause) => Some(cause),
            };
            return Err(NoRoom::Full {
                used,
                capacity,
                cause,
            });
        }
    }

    /// Makes room in a log that was full when its head was at `head`. Returns `false` if nothing could be
    /// freed.
    pub(crate) fn make_room(&self, head: Lsn) -> Result<bool, TruncateError> {
        let began = self.storage.now();
        let freed = match self.truncation {
            TruncationPolicy::Elsewhere { patience } => self.wait_for_trim(head, patience),
            TruncationPolicy::Here => match self.signal_and_wait(head) {
                TruncationAnswer::Done => Ok(()),
                TruncationAnswer::Failed(error) => Err(error),
                TruncationAnswer::NoThread => self.free_some(head),
            },
        };
        add(&self.counters.full_stalls, 1);
        add(&self.counters.full_stall_ns, self.storage.now().since(began).0);
        freed.map(|()| self.head() > head)
    }

    fn signal_and_wait(&self, head: Lsn) -> TruncationAnswer {
        match self.threaded.load(Ordering::Acquire) {
            true => self.signal.request_and_wait(|| self.head() > head),
            false => TruncationAnswer::NoThread,
        }
    }

    /// Truncates until the head is beyond `head`, or every logged commit has been applied.
    pub(crate) fn free_some(&self, head: Lsn) -> Result<(), TruncateError> {
        let mut waited = false;
        while self.head() <= head {
            if self.step()? == TruncateProgress::Idle {
                if waited {
                    break;
                }
                self.wait_for_disk()?;
                waited = true;
            }
        }
        Ok(())
    }

    /// Truncates until the head is at `target` or beyond.
    pub(crate) fn truncate_to(&self, target: Lsn) -> Result<(), TruncateError> {
        while self.head() < target {
            if self.step()? == TruncateProgress::Idle && self.head() < target {
                self.wait_for_disk()?;
                assert!(
                    self.log.state().stable >= target,
                    "records on the disk are stable"
                );
            }
        }
        Ok(())
    }

    /// Waits until every record appended so far is stable, including commits of other threads that have not
    /// returned.
    pub(crate) fn wait_for_disk(&self) -> Result<(), TruncateError> {
        let state = self.log.state();
        if state.stable >= state.tail {
            return Ok(());
        }
        let all = CommitTicket {
            lsn: state.stable,
            end: state.tail,
        };
        self.log
            .wait(all, Durability::Disk)
            .map(drop)
            .map_err(TruncateError::Wait)
    }

    /// Applies every commit so far that changed the segment of `mark`.
    pub(crate) fn apply_segment(&self, mark: &SegmentMark) -> Result<(), TruncateError> {
        if self.spool.is_active() && self.spool.lock().has(mark) {
            self.drain_spool()?;
        }
        self.truncate_to(mark.end())
    }

    /// Applies every commit so far and records that in the segments' stamps.
    pub(crate) fn apply_all(&self) -> Result<(), TruncateError> {
        let last = *lock(&self.last);
        self.truncate_to(last.map_or(Lsn(0), |ticket| ticket.end))?;
        let log = self.log.state();
        lock(&self.segments).close(&self.storage, log.head, log.tail)?;
        Ok(())
    }

    pub(crate) fn step(&self) -> Result<TruncateProgress, TruncateError> {
        if self.truncation != TruncationPolicy::Here {
            return Ok(TruncateProgress::Idle);
        }
        let world = TruncateContext {
            log: &self.log,
            storage: &self.storage,
            segments: &self.segments,
            counters: &self.counters,
        };
        let mut truncator = lock(&self.truncator);
        let began = self.storage.now();
        let stepped = truncator.step(&world);
        add(&self.counters.truncation_ns, self.storage.now().since(began).0);
        if let Ok(TruncateProgress::Trimmed(head)) = stepped {
            // Under the lock, before another thread can find nothing left to apply and report the log as
            // full.
            self.head.fetch_max(head.0, Ordering::AcqRel);
        }
        drop(truncator);
        match stepped {
            Ok(TruncateProgress::Trimmed(_)) => self.signal.progress(),
            Ok(_) => {}
            Err(_) => add(&self.counters.truncation_failures, 1),
        }
        stepped
    }

    /// Appends the spool to the log as one record; waits only for the log's window. After an error the spool
    /// is unchanged.
    pub(crate) fn log_spool(&self, spool: &mut SpoolContents) -> Result<(), AppendError> {
        if let Some(ticket) = spool.log(&self.log, &self.counters)? {
            self.committed(ticket);
        }
        self.spool.logged(spool);
        Ok(())
    }

    /// Appends the spool to the log, and makes room in a full log.
    pub(crate) fn drain_spool(&self) -> Result<(), NoRoom> {
        if !self.spool.is_active() {
            return Ok(());
        }
        self.with_room(|| self.log_spool(&mut self.spool.lock()))
    }

    /// Sets the spool's limit in bytes; zero turns it off.
    pub(crate) fn resize_spool(&self, bytes: usize) {
        self.spool.resize(self.spool_bytes_max(bytes));
        if bytes == 0 {
            // If the log has no room now, the next commit, flush or wake of the thread logs the spool.
            let _ = self.log_spool(&mut self.spool.lock());
        }
        self.signal.nudge();
    }

    /// Caps a spool's limit of `bytes`. A record of more than a quarter of the log would often find the log
    /// too full, and its commit would wait for truncation.
    pub(crate) fn spool_bytes_max(&self, bytes: usize) -> usize {
        let quarter = usize::try_from(self.capacity / 4).unwrap_or(usize::MAX);
        bytes.min(self.payload_max).min(quarter).min(u32::MAX as usize)
    }
}

impl From<NoRoom> for TruncateError {
    fn from(refusal: NoRoom) -> TruncateError {
        match refusal {
            NoRoom::Full {
                cause: Some(cause), ..
            } => cause,
            NoRoom::Full { used, capacity, .. } => {
                TruncateError::Append(AppendError::Full { used, capacity })
            }
            NoRoom::Refused(error) => TruncateError::Append(error),
        }
    }
}

impl From<NoRoom> for FlushError {
    fn from(refusal: NoRoom) -> FlushError {
        match refusal {
            NoRoom::Full {
                used,
                capacity,
                cause,
            } => FlushError::Full {
                used,
                capacity,
                cause,
            },
            NoRoom::Refused(error) => FlushError::Refused(error),
        }
    }
}
