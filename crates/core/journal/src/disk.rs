//! The way to the disk: the ring's newest records are written to the log file in batches and synced, and the
//! machine is told what is stable.
//!
//! The disk thread does it, `disk_delay` after a batch's first record, or at once when somebody waits for the
//! disk. A commit that only the disk can end goes itself when nobody is on the way: handing over to the
//! thread and back would cost two context switches. Whoever holds the drain is on the way, one at a time;
//! what others append meanwhile is the next batch. What is written are the very bytes that the members hold.
//!
//! A write that the system refuses (rule 17) is tried again at the same place, from the ring, which keeps the
//! bytes until they are synced. Meanwhile commits go on as far as the members' window reaches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict, SystemCall};
use netram_proto::id::Lsn;
use netram_proto::port::Durability;

use crate::core::JournalState;
use crate::sys::RingDrain;

/// With nothing to write, the thread looks up this often all the same.
const IDLE_MAX: Duration = Duration::from_millis(500);

/// The way to the disk.
pub(crate) type SharedDiskWriter = Mutex<DiskWriter>;

/// What whoever is on the way to the disk needs.
pub(crate) struct DiskWriter {
    /// The ring's reading end; `None` once the disk was given up, so that nobody tries again (rule 9).
    drain: Option<RingDrain>,
    policy: RetryPolicy,
}

impl DiskWriter {
    pub(crate) fn new(drain: RingDrain) -> DiskWriter {
        DiskWriter {
            drain: Some(drain),
            policy: RetryPolicy::new(),
        }
    }
}

/// How a way to the disk ended.
enum BatchOutcome {
    /// The disk has everything that the ring had.
    Done,
    /// The system refused; to be tried again after this time.
    Refused(Duration),
    /// The disk was given up, now or before.
    GivenUp,
}

/// Runs until the journal is closed and everything is stable, or the disk was given up.
pub(crate) fn run(shared: &Arc<JournalState>) {
    while wait_for_work(shared) {
        let stored = {
            let mut way = shared.drain.lock().expect("nothing panics under this lock");
            store_batch(shared, &mut way)
        };
        match stored {
            BatchOutcome::Done => (),
            BatchOutcome::Refused(pause) => pause_for(shared, pause),
            BatchOutcome::GivenUp => return,
        }
    }
}

/// Waits before a refused write is tried again, whoever asks; not longer than until the journal is to be
/// closed.
fn pause_for(shared: &JournalState, pause: Duration) {
    let signal = &shared.disk;
    let state = signal.state.lock().expect("nothing panics under this lock");
    if state.closing {
        drop(state);
        return std::thread::sleep(pause);
    }
    let waited = signal
        .wake
        .wait_timeout_while(state, pause, |state| !state.closing);
    drop(waited.expect("nothing panics under this lock"));
}

/// Goes to the disk for a commit of this durability, if only the disk can end it and nobody is on the way;
/// otherwise asks the thread to go.
pub(crate) fn write_or_request(shared: &JournalState, durability: Durability) {
    // With lenders, a commit that any vote may end must go on listening to them: the disk may hang.
    let disk_alone = durability == Durability::Disk || shared.config.lenders.is_empty();
    if !disk_alone {
        return shared.request_sync();
    }
    match shared.drain.try_lock() {
        // The pause after a refusal is the thread's to keep.
        Ok(way) if way.policy.failing().is_some() => shared.request_sync(),
        Ok(mut way) => {
            // Members get the record before the sync, not after it.
            shared.send(&mut shared.core());
            if let BatchOutcome::Refused(_) = store_batch(shared, &mut way) {
                shared.request_sync();
            }
        }
        Err(TryLockError::WouldBlock) => shared.request_sync(),
        Err(TryLockError::Poisoned(_)) => unreachable!("nothing panics under this lock"),
    }
}

/// Writes and syncs what the ring has and the disk lacks.
fn store_batch(shared: &JournalState, way: &mut DiskWriter) -> BatchOutcome {
    let DiskWriter {
        drain: Some(drain),
        policy,
    } = way
    else {
        return BatchOutcome::GivenUp;
    };
    let end = shared.core().end;
    if end.lsn == drain.position() {
        return BatchOutcome::Done;
    }
    if let Err(failure) = store(shared, drain, end.lsn) {
        let hurried = shared
            .disk
            .state
            .lock()
            .expect("nothing panics under this lock")
            .closing;
        return match shared.judge(policy, failure, hurried, "log") {
            RetryVerdict::Again(pause) => {
                shared.refusals.log.store(failure.error.errno, Ordering::Relaxed);
                BatchOutcome::Refused(Duration::from_nanos(pause.pause.0))
            }
            RetryVerdict::GiveUp => {
                way.drain = None;
                shared.poison(failure.error, "log");
                BatchOutcome::GivenUp
            }
        };
    }
    if policy.failing().is_some() {
        let failures = policy.succeeded();
        shared.refusals.log.store(0, Ordering::Relaxed);
        tracing::info!(failures, journal = %shared.paths.root().display(), "the local disk takes writes again");
    }
    let mut core = shared.core();
    drain.let_go(end.lsn);
    shared.drained.store(end.lsn.0, Ordering::SeqCst);
    let now = shared.now();
    core.writer.on_stable(end, now);
    shared.publish(&mut core);
    drop(core);
    shared.room.notify_all();
    BatchOutcome::Done
}

fn store(shared: &JournalState, drain: &RingDrain, end: Lsn) -> Result<(), CallError> {
    let written = shared.log.write(drain.position(), drain.up_to(end));
    written.map_err(|error| error.of(SystemCall::Write))?;
    shared.sync_log()
}

/// Waits until a batch is due. `false`: stop.
fn wait_for_work(shared: &JournalState) -> bool {
    let signal = &shared.disk;
    let mut state = signal.state.lock().expect("nothing panics under this lock");
    // Where the batch begins that is being waited for, and when it is due. A commit may have taken it to the
    // disk.
    let mut batch: Option<(u64, Instant)> = None;
    loop {
        // Not the stable LSN: once a view could not be stored that stays where it is, and the ring empties
        // all the same.
        let position = shared.drained.load(Ordering::SeqCst);
        let pending = shared.tail.load(Ordering::SeqCst) > position;
        if state.stop && !pending {
            return false;
        }
        let now = Instant::now();
        if pending {
            let due = match batch {
                Some((begin, due)) if begin == position => due,
                _ => now + shared.config.disk_delay,
            };
            batch = Some((position, due));
            if state.sync_requested || state.stop || due <= now {
                state.sync_requested = false;
                return true;
            }
            let waited = signal.wake.wait_timeout(state, due - now);
            state = waited.expect("nothing panics under this lock").0;
        } else {
            state.sync_requested = false;
            signal.parked.store(true, Ordering::SeqCst);
            // An append between the look above and the flag would otherwise go unseen.
            if shared.tail.load(Ordering::SeqCst) == position {
                let waited = signal.wake.wait_timeout(state, IDLE_MAX);
                state = waited.expect("nothing panics under this lock").0;
            }
            signal.parked.store(false, Ordering::SeqCst);
        }
    }
}
