//! Brings the blocks of a restored volume home, one after the other, while it serves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_block::BLOCK_BYTES;

use crate::replica::VolumeDisk;

/// How long it waits after a block did not come, or before it looks for those left out.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The thread, from outside.
#[derive(Debug)]
pub(crate) struct RestoreCopier {
    shared: Arc<CopierInner>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct CopierInner {
    next: AtomicU64,
    stop: AtomicBool,
    pause: Mutex<()>,
    stopped: Condvar,
}

impl RestoreCopier {
    pub(crate) fn start(disk: &Arc<VolumeDisk>) -> std::io::Result<RestoreCopier> {
        let shared = Arc::new(CopierInner::default());
        let (disk, theirs) = (Arc::clone(disk), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("netram-copy".to_owned())
            .spawn(move || run(&disk, &theirs))?;
        Ok(RestoreCopier { shared, thread })
    }

    /// Blocks that were looked at, of all; `None` once nothing is missing.
    pub(crate) fn progress(&self, disk: &VolumeDisk) -> Option<(u64, u64)> {
        let blocks = disk.geometry().bytes / BLOCK_BYTES;
        disk.is_restoring()
            .then(|| (self.shared.next.load(Ordering::Relaxed).min(blocks), blocks))
    }

    /// Ends it; the next opening goes on.
    pub(crate) fn stop(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.stopped.notify_all();
        // A panic was printed where it happened.
        let _ = self.thread.join();
    }
}

fn run(disk: &VolumeDisk, shared: &CopierInner) {
    let (mut next, mut complained, mut lost) = (0, false, 0);
    while !shared.stop.load(Ordering::Acquire) {
        match disk.copy_step(next) {
            Ok(copied) => {
                complained = false;
                next = copied.next;
                shared.next.store(next, Ordering::Relaxed);
                if !copied.lost.is_empty() {
                    lost += copied.lost.len();
                    tracing::error!(
                        blocks = ?copied.lost, lost,
                        "blocks are damaged at the data lender too: they are lost, and unreadable until they are written"
                    );
                }
                if !disk.is_restoring() {
                    tracing::info!(
                        lost,
                        "the volume is restored: all that the data lender had is here"
                    );
                    return;
                }
                if next >= disk.geometry().bytes / BLOCK_BYTES {
                    // Some were passed over: once more, not at once.
                    next = 0;
                    shared.wait();
                }
            }
            Err(error) => {
                if !complained {
                    tracing::warn!(%error, "restoring waits");
                }
                complained = true;
                shared.wait();
            }
        }
    }
}

impl CopierInner {
    fn wait(&self) {
        let pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        let going = |(): &mut ()| !self.stop.load(Ordering::Acquire);
        drop(self.stopped.wait_timeout_while(pause, RETRY_INTERVAL, going));
    }
}
