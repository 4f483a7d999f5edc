//! The truncation thread: performs `truncate_step` when committers request it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::port::{AppendError, RecordLog};

use crate::error::TruncateError;
use crate::limit::{SPOOL_MS, TRUNCATION_RETRY_MS};
use crate::options::TruncationPolicy;
use crate::state::RvmState;
use crate::stats::add;
use crate::storage::SegmentStorage;
use crate::sync::TruncationWork;

/// Starts the thread. It ends when the `Rvm` is dropped.
pub(crate) fn start<L, S>(shared: &Arc<RvmState<L, S>>) -> std::io::Result<JoinHandle<()>>
where
    L: RecordLog + Send + Sync + 'static,
    S: SegmentStorage + Send + Sync + 'static,
    S::File: Send + Sync,
{
    let theirs = shared.clone();
    shared.signal.start();
    shared.threaded.store(true, Ordering::Release);
    let started = std::thread::Builder::new()
        .name("netram-truncate".to_owned())
        .spawn(move || run(&theirs));
    if started.is_err() {
        drop(ExitGuard(shared));
    }
    started
}

/// Marks the thread as ended when dropped, also after a panic, so that no committer waits for it.
struct ExitGuard<'a, L: RecordLog, S: SegmentStorage>(&'a RvmState<L, S>);

impl<L: RecordLog, S: SegmentStorage> Drop for ExitGuard<'_, L, S> {
    fn drop(&mut self) {
        self.0.threaded.store(false, Ordering::Release);
        self.0.signal.ended();
    }
}

fn run<L: RecordLog, S: SegmentStorage>(shared: &RvmState<L, S>) {
    let _leave = ExitGuard(shared);
    // After a failure the thread retries by itself, so that the log does not stay full without a request.
    let mut failed = false;
    let mut spool = SpoolClock::default();
    loop {
        let timeout = match failed {
            true => Some(Duration::from_millis(TRUNCATION_RETRY_MS)),
            false => spool.timeout(shared),
        };
        let work = shared.signal.next(timeout);
        if work == TruncationWork::Stop {
            return;
        }
        let full = spool.tick(shared);
        let request = match work {
            TruncationWork::Requested(request) => request,
            _ if failed || full => 0,
            _ => continue,
        };
        shared.truncation_requested.store(false, Ordering::Release);
        add(&shared.counters.background_truncations, 1);
        let failure = drain(shared, &mut spool).err();
        failed = failure.is_some();
        shared.signal.answer(request, failure);
    }
}

/// Time at which the thread last logged the spool.
#[derive(Default)]
struct SpoolClock(Option<Instant>);

impl SpoolClock {
    const PERIOD: Duration = Duration::from_millis(SPOOL_MS);

    /// How long the thread may sleep. Without a spool it does not wake by itself.
    fn timeout<L: RecordLog, S: SegmentStorage>(&self, shared: &RvmState<L, S>) -> Option<Duration> {
        let left = match self.0 {
            Some(last) => Self::PERIOD.saturating_sub(last.elapsed()),
            None => Self::PERIOD,
        };
        shared.spool.is_active().then_some(left)
    }

    /// Logs the spool when it is due. Returns `true` if the log is too full for it.
    fn tick<L: RecordLog, S: SegmentStorage>(&mut self, shared: &RvmState<L, S>) -> bool {
        if !shared.spool.is_active() {
            self.0 = None;
            return false;
        }
        let last = *self.0.get_or_insert_with(Instant::now);
        if last.elapsed() < Self::PERIOD {
            return false;
        }
        self.0 = Some(Instant::now());
        let logged = shared.log_spool(&mut shared.spool.lock());
        // The next commit reports any other error.
        matches!(logged, Err(AppendError::Full { .. }))
    }
}

/// Applies the records that are stable now, waiting for the disk if there are none. Logs the spool between
/// steps, which are slow on a slow disk.
///
/// Records that become stable during the drain are left for later: under steady load it would never end, and
/// its syncs would slow the log's own.
fn drain<L: RecordLog, S: SegmentStorage>(
    shared: &RvmState<L, S>,
    spool: &mut SpoolClock,
) -> Result<(), TruncateError> {
    if shared.truncation != TruncationPolicy::Here {
        return Ok(());
    }
    if shared.log.state().stable <= shared.head() {
        shared.wait_for_disk()?;
    }
    let target = shared.log.state().stable;
    while shared.head() < target && !shared.signal.stopping() {
        shared.step()?;
        // The log is full of records that this drain has not trimmed yet; the next wake-up tries again.
        let _full = spool.tick(shared);
    }
    Ok(())
}
