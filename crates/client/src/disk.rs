//! The disk thread: writes the ring's newest records to the log file in batches, syncs, and tells the machine what is
//! stable.
//!
//! A batch starts `disk_delay` after its first record, or at once when somebody waits for the disk. What it writes are
//! the very bytes that the members hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netram_proto::id::Lsn;
use netram_proto::port::IoError;

use crate::core::Shared;
use crate::sys::Drain;

/// With nothing to write, the thread looks up this often all the same.
const IDLE_MAX: Duration = Duration::from_millis(500);

/// Runs until the journal is closed and everything is stable, or the disk has failed.
pub(crate) fn run(shared: &Arc<Shared>, mut drain: Drain) {
    while wait_for_work(shared, drain.position()) {
        let end = shared.core().end;
        if end.lsn == drain.position() {
            continue;
        }
        if let Err(error) = store(shared, &drain, end.lsn) {
            shared.poison(error, "log");
            return;
        }
        let mut core = shared.core();
        drain.let_go(end.lsn);
        let now = shared.now();
        core.writer.on_stable(end, now);
        shared.publish(&mut core);
        drop(core);
        shared.room.notify_all();
    }
}

fn store(shared: &Shared, drain: &Drain, end: Lsn) -> Result<(), IoError> {
    shared.log.write(drain.position(), drain.up_to(end))?;
    shared.sync_log()
}

/// Waits until a batch is due. `false`: stop.
fn wait_for_work(shared: &Shared, position: Lsn) -> bool {
    let signal = &shared.disk;
    let mut state = signal.state.lock().expect("nothing panics under this lock");
    let mut due: Option<Instant> = None;
    loop {
        let pending = shared.tail.load(Ordering::SeqCst) > position.0;
        if state.stop && !pending {
            return false;
        }
        let now = Instant::now();
        if pending {
            let due = *due.get_or_insert(now + shared.config.disk_delay);
            if state.poked || state.stop || due <= now {
                state.poked = false;
                return true;
            }
            let waited = signal.wake.wait_timeout(state, due - now);
            state = waited.expect("nothing panics under this lock").0;
        } else {
            state.poked = false;
            signal.parked.store(true, Ordering::SeqCst);
            // An append between the look above and the flag would otherwise go unseen.
            if shared.tail.load(Ordering::SeqCst) == position.0 {
                let waited = signal.wake.wait_timeout(state, IDLE_MAX);
                state = waited.expect("nothing panics under this lock").0;
            }
            signal.parked.store(false, Ordering::SeqCst);
        }
    }
}
