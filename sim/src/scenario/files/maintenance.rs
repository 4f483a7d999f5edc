//! The two maintenance threads of a mount: their due work, and checks that they do it.

use netram_files::{ChangeError, CheckpointError, PeriodicTask};
use netram_proto::limit::RETRY_PAUSE_MAX;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use super::{Program, TestedDirectory};
use crate::check::fail;

/// Interval at which the threads look for work, and interval of checkpoints.
const POLL_MS: u64 = 50;
const CHECKPOINT_MS: u64 = 700;
/// Time without hindrance after which all due work is done: the longest pause after a refusal, and the work
/// itself.
const IDLE_MS: u64 = 2500;

const _: () = assert!(IDLE_MS > RETRY_PAUSE_MAX.ms() + CHECKPOINT_MS + 4 * POLL_MS);

/// Due work of a mount's two threads.
pub(super) struct MountMaintenance {
    recorder: PeriodicTask,
    checkpoints: PeriodicTask,
    /// The journal has failed and takes nothing more, so no work is due.
    journal_failed: bool,
}

impl MountMaintenance {
    pub(super) fn new(now: Time, planted: FaultSwitch) -> MountMaintenance {
        MountMaintenance {
            recorder: PeriodicTask::new(now, Nanos::from_ms(POLL_MS), planted),
            checkpoints: PeriodicTask::new(now, Nanos::from_ms(CHECKPOINT_MS), planted),
            journal_failed: false,
        }
    }
}

impl Program {
    /// Lets time pass while the program does nothing and the threads do their work.
    pub(super) fn run_for(&mut self, process: usize, directory: &TestedDirectory, ms: u64) -> bool {
        if ms >= IDLE_MS {
            // Resources that were short are available again.
            self.disk.set_opens_allowed(true);
            self.disk.set_catalog_writable(true);
        }
        let mut left = ms;
        while left > 0 {
            let step = left.min(POLL_MS);
            left -= step;
            self.world.borrow_mut().run_for(Nanos::from_ms(step));
            let lives = self.world.borrow().processes.alive(process);
            if !lives || !self.run_due(directory) {
                return false;
            }
            let mut world = self.world.borrow_mut();
            if world.died_on_backing_disk(process) || !world.processes.alive(process) {
                return false;
            }
        }
        let sound = directory.status().failed.is_none() && !self.maintenance.journal_failed;
        if ms >= IDLE_MS && sound && !self.disk.is_failing() {
            self.check_nothing_due(directory);
        }
        true
    }

    /// Does the due work of both threads. `false`: this life is over.
    fn run_due(&mut self, directory: &TestedDirectory) -> bool {
        let now = self.world.borrow().kernel.now();
        if self.maintenance.recorder.is_due(now, false) {
            self.model.asked_to_record_all();
            let done = directory.record_written();
            self.tell(|| format!("the keeper records: {done:?}"));
            self.maintenance.journal_failed |=
                matches!(done, Err(ChangeError::Append(_) | ChangeError::Wait(_)));
            if done.is_err() {
                self.hit("files: recordings that were refused");
            }
            self.maintenance.recorder.on_attempt(now, done.into());
        }
        if self
            .maintenance
            .checkpoints
            .is_due(now, directory.needs_checkpoint())
        {
            let done = directory.checkpoint();
            self.tell(|| format!("the keeper makes a checkpoint: {done:?}"));
            match done {
                Ok(()) => {
                    self.hit("files: checkpoints");
                    self.model.synced_all();
                }
                Err(CheckpointError::Sync(_)) => self.hit("files: syncs of the disk beneath that failed"),
                Err(error) => {
                    self.hit("files: checkpoints that were refused");
                    let ended = matches!(error, CheckpointError::Log(_) | CheckpointError::Wait(_));
                    self.maintenance.journal_failed |= ended;
                }
            }
            self.maintenance.checkpoints.on_attempt(now, done.into());
            return done.is_ok() || !matches!(done, Err(CheckpointError::Sync(_)));
        }
        true
    }

    /// Checks after a while without hindrance: every write is recorded and held, and a checkpoint was made.
    fn check_nothing_due(&mut self, directory: &TestedDirectory) {
        self.hit("files: lulls");
        let status = directory.status();
        if status.dirty > 0 || status.log.head < status.log.tail {
            fail(
                17,
                format!(
                    "{} files wait for a checkpoint, the journal has {} to {}, and nothing hinders it",
                    status.dirty, status.log.head, status.log.tail
                ),
            );
        }
        self.model.recorded_all();
    }
}
