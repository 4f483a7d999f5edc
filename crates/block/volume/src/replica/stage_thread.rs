//! The thread that brings stages into a copy's image.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::{ApplierTask, ApplyProgress};
use netram_proto::time::Time;

use super::open_replica::{ReplicaDisk, TICK};

/// How long the thread waits after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// The thread, from outside. Dropping it ends the thread, however the copy's own came to its end: a thread
/// left behind would keep the copy's files locked.
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

    /// Nothing gets into the image any more.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for StageThread {
    fn drop(&mut self) {
        self.disk.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

/// Says that the thread is gone however it goes.
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
            tracing::error!(%error, "a stage did not get into a copy's image; trying on");
        }
        failed = ended.is_err();
    }
}

fn apply(disk: &ReplicaDisk) -> Result<(), String> {
    loop {
        let progress = disk.apply_step().map_err(|error| error.to_string())?;
        // What had no room before may have now.
        if !matches!(progress, ApplyProgress::Working) {
            disk.follow().map_err(|error| error.to_string())?;
        }
        if progress == ApplyProgress::Idle {
            return Ok(());
        }
    }
}
