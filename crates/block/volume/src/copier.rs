//! Fetches the blocks of a restored volume one after another while it serves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_block::BLOCK_BYTES;

use crate::replica::VolumeDisk;

/// Delay after a block could not be fetched, and before blocks left out are tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Handle of the copier thread.
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

    /// Number of blocks examined, and of all blocks; `None` once no block is missing.
    pub(crate) fn progress(&self, disk: &VolumeDisk) -> Option<(u64, u64)> {
        let blocks = disk.geometry().bytes / BLOCK_BYTES;
        disk.is_restoring()
            .then(|| (self.shared.next.load(Ordering::Relaxed).min(blocks), blocks))
    }

    /// Ends the thread; the next opening continues.
    pub(crate) fn stop(self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.stopped.notify_all();
        // The panic message was printed by the thread.
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
                        "these blocks are damaged at the data lender too and are lost: they stay unreadable until they are overwritten"
                    );
                }
                if !disk.is_restoring() {
                    tracing::info!(
                        lost,
                        "restore complete: all blocks of the data lender are now on the local disk"
                    );
                    return;
                }
                if next >= disk.geometry().bytes / BLOCK_BYTES {
                    // Some blocks were left out: start over, but not at once.
                    next = 0;
                    shared.wait();
                }
            }
            Err(error) => {
                if !complained {
                    tracing::warn!(%error, "restore is waiting; it will be retried");
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
