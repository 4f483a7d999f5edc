//! The thread that waits for the disk on behalf of the store, so that the merging thread never does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, RecordLog, WaitError};
use netram_store::JournaledRvm;

/// Handle of the thread. Dropping it waits for the sync under way.
pub(super) struct LogSyncer {
    shared: Arc<SyncerInner>,
    thread: Option<JoinHandle<()>>,
}

struct SyncerInner {
    state: Mutex<State>,
    wake: Condvar,
    durable: AtomicU64,
    on_durable: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    /// The newest change.
    requested: Option<CommitTicket>,
    trouble: Option<WaitError>,
    stop: bool,
}

impl SyncerInner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}

impl LogSyncer {
    pub(super) fn start(
        memory: Arc<JournaledRvm>,
        told: Box<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<LogSyncer> {
        let shared = Arc::new(SyncerInner {
            state: Mutex::default(),
            wake: Condvar::new(),
            durable: AtomicU64::new(memory.log().state().stable.0),
            on_durable: told,
        });
        let thread = std::thread::Builder::new()
            .name("netram-sync".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || run(&memory, &shared)
            })?;
        Ok(LogSyncer {
            shared,
            thread: Some(thread),
        })
    }

    /// Requests that the log becomes durable up to this change.
    pub(super) fn request(&self, ticket: CommitTicket) {
        self.shared.lock().requested = Some(ticket);
        self.shared.wake.notify_one();
    }

    pub(super) fn durable(&self) -> Lsn {
        Lsn(self.shared.durable.load(Ordering::Acquire))
    }

    pub(super) fn trouble(&self) -> Option<WaitError> {
        self.shared.lock().trouble
    }
}

/// Syncs until it is stopped. Each wait is for the newest change; changes that come during it share the next
/// sync.
fn run(memory: &JournaledRvm, shared: &SyncerInner) {
    loop {
        let ticket = {
            let mut state = shared.lock();
            loop {
                if state.stop {
                    return;
                }
                if let Some(ticket) = state.requested.take() {
                    break ticket;
                }
                state = shared.wake.wait(state).expect("nothing panics under this lock");
            }
        };
        match memory.log().wait(ticket, Durability::Disk) {
            Ok(_) => {
                shared.durable.fetch_max(ticket.end.0, Ordering::AcqRel);
            }
            Err(error) => {
                tracing::error!(%error, "the server's log has failed");
                shared.lock().trouble = Some(error);
                (shared.on_durable)();
                return;
            }
        }
        (shared.on_durable)();
    }
}

impl Drop for LogSyncer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use netram_proto::port::RecordLog;
    use netram_shared_machine::GrantNumber;

    use crate::server::{RegionPlan, RegionStore, Spans};

    /// A record that is reported durable too early is lost in a power failure, which killing the process does
    /// not show.
    #[test]
    fn nothing_is_durable_before_the_disk_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("region");
        let plan = RegionPlan {
            bytes: 4096,
            address: 0,
            spans: Spans::even(4096, 4096).unwrap(),
            log_bytes: 1 << 20,
            nodes_settings: String::new(),
        };
        RegionStore::create(&root, &plan).unwrap();
        let (mut store, _) = RegionStore::open(&root, || ()).unwrap();
        let began = Instant::now();
        for ceiling in 1..300 {
            let end = store.raise_ceiling(GrantNumber(ceiling)).unwrap();
            loop {
                let durable = store.durable();
                assert!(durable <= store.memory.log().state().stable);
                if durable >= end {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "the disk follows");
                std::thread::yield_now();
            }
        }
    }
}
