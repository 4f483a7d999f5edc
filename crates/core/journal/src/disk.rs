//! Writing to the disk: the ring's newest records are written to the log file in batches and synced, and the
//! writer learns what is stable.
//!
//! The disk thread does this `disk_delay` after a batch's first record, or at once when a thread waits for
//! the disk. A commit that only the disk can complete writes by itself if no write is under way, which saves
//! two context switches. The holder of the drain's lock writes; records appended during that time form the
//! next batch. The bytes written are those that the members hold.
//!
//! A write that the system refuses (rule 17) is retried at the same place from the ring, which keeps the
//! bytes until they are synced. Commits go on as far as the members' window reaches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::{Duration, Instant};

use netram_proto::failure::{CallError, RetryVerdict, SystemCall};
use netram_proto::id::Lsn;
use netram_proto::port::Durability;

use crate::core::JournalState;
use crate::disk_writer::DiskWriter;
use crate::sys::RingDrain;

/// Maximum sleep of the disk thread when there is nothing to write.
const IDLE_MAX: Duration = Duration::from_millis(500);

/// The result of one batch.
enum BatchOutcome {
    /// The disk has everything that the ring had.
    Done,
    /// The system refused the write; retry after this time.
    Refused(Duration),
    /// The disk was given up, now or earlier.
    GivenUp,
}

/// Runs until the journal is closed and everything is stable, or until the disk was given up.
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

/// Waits before a refused write is retried, regardless of requests, but no longer than until the journal is
/// being closed.
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

/// Writes to the disk for a commit of this durability if only the disk can complete it and no write is under
/// way. Otherwise asks the disk thread to write.
pub(crate) fn write_or_request(shared: &JournalState, durability: Durability) {
    // With lenders, a commit that any vote may complete must keep listening to them, since the disk may hang.
    let disk_alone = durability == Durability::Disk || shared.lenderless.load(Ordering::Relaxed);
    if !disk_alone {
        return shared.request_sync();
    }
    match shared.drain.try_lock() {
        // The disk thread keeps the pause after a refusal.
        Ok(way) if way.policy.failing().is_some() => shared.request_sync(),
        Ok(mut way) => {
            // Members get the record before the sync begins.
            shared.send(&mut shared.core());
            if let BatchOutcome::Refused(_) = store_batch(shared, &mut way) {
                shared.request_sync();
            }
        }
        Err(TryLockError::WouldBlock) => shared.request_sync(),
        Err(TryLockError::Poisoned(_)) => unreachable!("nothing panics under this lock"),
    }
}

/// Writes and syncs the records that the ring has and the disk lacks.
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
        tracing::info!(failures, journal = %shared.paths.root().display(), "the local disk accepts writes again");
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

/// Waits until a batch is due. Returns `false` when the thread must stop.
fn wait_for_work(shared: &JournalState) -> bool {
    let signal = &shared.disk;
    let mut state = signal.state.lock().expect("nothing panics under this lock");
    // Start and due time of the batch that is awaited. A commit may have written it in the meantime.
    let mut batch: Option<(u64, Instant)> = None;
    loop {
        // Not the stable LSN: once a view could not be stored it stays where it is, while the ring still
        // empties.
        let position = shared.drained.load(Ordering::SeqCst);
        let pending = shared.tail.load(Ordering::SeqCst) > position;
        if state.stop && !pending {
            return false;
        }
        let now = Instant::now();
        if pending {
            let due = match batch {
                Some((begin, due)) if begin == position => due,
                _ => now + shared.disk_delay(),
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
            // Otherwise an append between the check above and the flag would go unnoticed.
            if shared.tail.load(Ordering::SeqCst) == position {
                let waited = signal.wake.wait_timeout(state, IDLE_MAX);
                state = waited.expect("nothing panics under this lock").0;
            }
            signal.parked.store(false, Ordering::SeqCst);
        }
    }
}
