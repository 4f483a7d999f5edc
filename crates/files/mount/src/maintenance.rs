//! The two threads of a mount: one records writes within 50 ms, the other makes checkpoints.
//!
//! They are separate because a checkpoint takes as long as the disk does. `netram_files::PeriodicTask`
//! decides when each task runs and retries it after errors.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_files::{PeriodicTask, TaskNotice, TaskOutcome};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use crate::mount::MountState;

/// Interval at which pending writes are recorded, and at which the need for a checkpoint is checked.
const RECORD_INTERVAL: Duration = Duration::from_millis(50);

/// Handles of the two threads.
pub(crate) struct MaintenanceThreads {
    threads: Vec<JoinHandle<()>>,
    stop_signals: Vec<Sender<()>>,
}

/// Outcome of an attempt, with the error if it failed.
type AttemptResult = (TaskOutcome, Option<Box<dyn Display>>);

/// A task of one thread, and its log lines.
struct MaintenanceTask {
    name: &'static str,
    interval: Duration,
    is_urgent: fn(&MountState) -> bool,
    run: fn(&MountState) -> AttemptResult,
    refused: &'static str,
    resumed: &'static str,
}

const RECORDING: MaintenanceTask = MaintenanceTask {
    name: "netram-record",
    interval: RECORD_INTERVAL,
    is_urgent: |_| false,
    run: |held| attempt_result(held.record_written()),
    refused: "recent writes could not be recorded, so a crash would lose those that no program has synced; retrying",
    resumed: "writes are recorded again",
};

fn checkpoints(every: Duration) -> MaintenanceTask {
    MaintenanceTask {
        name: "netram-mount",
        interval: every,
        is_urgent: |held| held.journaled.needs_checkpoint(),
        run: |held| {
            let begun = Instant::now();
            let made = held.journaled.checkpoint();
            held.metrics.checkpoint.record(begun.elapsed());
            held.metrics.checkpoints_fail.set(made.is_err().into());
            attempt_result(made)
        },
        refused: "a checkpoint failed and will be retried; the journal keeps everything until then",
        resumed: "checkpoints succeed again",
    }
}

fn attempt_result<E: Display + Copy + 'static>(done: Result<(), E>) -> (TaskOutcome, Option<Box<dyn Display>>)
where
    Result<(), E>: Into<TaskOutcome>,
{
    let error = done.err().map(|error| -> Box<dyn Display> { Box::new(error) });
    (done.into(), error)
}

impl MaintenanceThreads {
    /// Starts the threads. Checkpoints are made every `every`, and sooner if the journal is half full.
    pub(crate) fn start(held: &Arc<MountState>, every: Duration) -> io::Result<MaintenanceThreads> {
        let mut keeper = MaintenanceThreads {
            threads: Vec::new(),
            stop_signals: Vec::new(),
        };
        for work in [RECORDING, checkpoints(every)] {
            let (end, ended) = channel();
            let held = Arc::clone(held);
            let thread = std::thread::Builder::new().name(work.name.to_owned());
            match thread.spawn(move || work.run_loop(&held, &ended)) {
                Ok(thread) => keeper.threads.push(thread),
                Err(error) => {
                    keeper.stop();
                    return Err(error);
                }
            }
            keeper.stop_signals.push(end);
        }
        Ok(keeper)
    }

    /// Stops the threads and waits for them.
    pub(crate) fn stop(self) {
        drop(self.stop_signals);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

impl MaintenanceTask {
    fn run_loop(&self, held: &MountState, ended: &Receiver<()>) {
        let begin = Instant::now();
        let now = || Time(begin.elapsed().as_nanos() as u64);
        let mut duty = PeriodicTask::new(now(), Nanos(self.interval.as_nanos() as u64), FaultSwitch::NONE);
        while ended.recv_timeout(RECORD_INTERVAL) == Err(RecvTimeoutError::Timeout) && !duty.has_stopped() {
            if !duty.is_due(now(), (self.is_urgent)(held)) {
                continue;
            }
            let (outcome, error) = (self.run)(held);
            if let Some(notice) = duty.on_attempt(now(), outcome) {
                self.report(held.dir(), notice, error.as_deref());
            }
        }
    }

    fn report(&self, directory: &Path, notice: TaskNotice, error: Option<&dyn Display>) {
        let (directory, error) = (
            directory.display(),
            error.map(ToString::to_string).unwrap_or_default(),
        );
        match notice {
            TaskNotice::Refused => tracing::error!(%directory, error, "{}", self.refused),
            TaskNotice::Resumed { refusals } => tracing::warn!(%directory, refusals, "{}", self.resumed),
            TaskNotice::Ended => tracing::error!(
                %directory,
                error,
                "the disk failed, so no further change is accepted; the journal has everything: repair the disk, unmount and mount again"
            ),
        }
    }
}
