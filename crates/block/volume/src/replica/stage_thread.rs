//! The thread that applies stages to a copy's image.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::{ApplierTask, ApplyProgress};
use netram_proto::time::Time;

use super::open_replica::{ReplicaDisk, TICK};

/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Handle of the thread; dropping it ends the thread. Otherwise a thread left behind, after any end of the
/// copy's own thread, would keep the copy's files locked.
pub(super) struct StageThread {
    disk: Arc<ReplicaDisk>,
    thread: Option<JoinHandle<()>>,
}

impl StageThread {
    pub(super) fn start(disk: &Arc<ReplicaDisk>) -> std::io::Result<StageThread> {
        let theirs = Arc::clone(disk);
        disk.applier_started();
        let started = std::thread::Builder::new()
            .name("netram-stage".to_owned())
            .spawn(move || run(&theirs));
        if started.is_err() {
            disk.applier_ended();
        }
        Ok(StageThread {
            disk: Arc::clone(disk),
            thread: Some(started?),
        })
    }

    /// Whether the thread has ended, so that no stage is applied any more.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for StageThread {
    fn drop(&mut self) {
        self.disk.stop();
        if let Some(thread) = self.thread.take() {
            // The panic message was printed by the thread.
            let _ = thread.join();
        }
    }
}

/// Announces that the applier thread has ended, even after a panic.
struct Leave<'a>(&'a ReplicaDisk);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.applier_ended();
    }
}

fn run(disk: &ReplicaDisk) {
    let _leave = Leave(disk);
    let origin = Instant::now();
    let mut failed = false;
    while disk.wait_for_work(if failed { RETRY } else { TICK }) == ApplierTask::Look {
        disk.tick(Time(
            u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX),
        ));
        let ended = apply(disk);
        if let (Err(error), false) = (&ended, failed) {
            tracing::error!(%error, "cannot apply writes to a copy's image; retrying");
        }
        failed = ended.is_err();
    }
}

fn apply(disk: &ReplicaDisk) -> Result<(), String> {
    loop {
        let progress = disk.apply_step().map_err(|error| error.to_string())?;
        // Records that had no room in the stages before may have some now.
        if !matches!(progress, ApplyProgress::Working) {
            disk.follow().map_err(|error| error.to_string())?;
        }
        if progress == ApplyProgress::Idle {
            return Ok(());
        }
    }
}
