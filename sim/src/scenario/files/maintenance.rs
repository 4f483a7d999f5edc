//! The two maintenance threads of a mount: their due work, and checks that they do it.

use netram_files::model::MemoryDisk;
use netram_files::{ChangeError, CheckpointError, JournaledDirectory, PeriodicTask};
use netram_proto::limit::RETRY_PAUSE_MAX;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use crate::check::fail;
use crate::check::files::DirectoryModel;
use crate::client::SimLog;
use crate::event_loop;
use crate::process::life::died_on_backing_disk;
use crate::world::WorldHandle;

/// Interval at which the threads look for work, and interval of checkpoints.
const POLL_MS: u64 = 50;
const CHECKPOINT_MS: u64 = 700;
/// Time without hindrance after which all due work is done: the longest pause after a refusal, and the work
/// itself.
const IDLE_MS: u64 = 2500;

const _: () = assert!(IDLE_MS > RETRY_PAUSE_MAX.ms() + CHECKPOINT_MS + 4 * POLL_MS);

/// The directory of a mount.
pub(super) type TestedDirectory = JournaledDirectory<SimLog, MemoryDisk, MemoryDisk>;

/// A mounted directory, and what its program knows of it.
pub(super) struct MaintainedMount<'a> {
    pub(super) world: &'a WorldHandle,
    pub(super) disk: &'a MemoryDisk,
    pub(super) model: &'a mut DirectoryModel,
    pub(super) directory: &'a TestedDirectory,
}

impl MaintainedMount<'_> {
    fn hit(&self, name: &'static str) {
        self.world.borrow_mut().kernel.hit(name);
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        self.world.borrow_mut().kernel.tell(line);
    }
}

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

    /// Lets time pass while the program does nothing and the threads do their work.
    pub(super) fn run_for(&mut self, mount: &mut MaintainedMount<'_>, process: usize, ms: u64) -> bool {
        if ms >= IDLE_MS {
            // Resources that were short are available again.
            mount.disk.set_opens_allowed(true);
            mount.disk.set_catalog_writable(true);
        }
        let mut left = ms;
        while left > 0 {
            let step = left.min(POLL_MS);
            left -= step;
            event_loop::run_for(&mut mount.world.borrow_mut(), Nanos::from_ms(step));
            let lives = mount.world.borrow().processes.alive(process);
            if !lives || !self.run_due(mount) {
                return false;
            }
            let mut world = mount.world.borrow_mut();
            if died_on_backing_disk(&mut world, process) || !world.processes.alive(process) {
                return false;
            }
        }
        let sound = mount.directory.status().failed.is_none() && !self.journal_failed;
        if ms >= IDLE_MS && sound && !mount.disk.is_failing() {
            MountMaintenance::check_nothing_due(mount);
        }
        true
    }

    /// Does the due work of both threads. `false`: this life is over.
    fn run_due(&mut self, mount: &mut MaintainedMount<'_>) -> bool {
        let now = mount.world.borrow().kernel.now();
        if self.recorder.is_due(now, false) {
            mount.model.asked_to_record_all();
            let done = mount.directory.record_written();
            mount.tell(|| format!("the keeper records: {done:?}"));
            self.journal_failed |= matches!(done, Err(ChangeError::Append(_) | ChangeError::Wait(_)));
            if done.is_err() {
                mount.hit("files: recordings that were refused");
            }
            self.recorder.on_attempt(now, done.into());
        }
        if self.checkpoints.is_due(now, mount.directory.needs_checkpoint()) {
            let done = mount.directory.checkpoint();
            mount.tell(|| format!("the keeper makes a checkpoint: {done:?}"));
            match done {
                Ok(()) => {
                    mount.hit("files: checkpoints");
                    mount.model.synced_all();
                }
                Err(CheckpointError::Sync(_)) => mount.hit("files: syncs of the disk beneath that failed"),
                Err(error) => {
                    mount.hit("files: checkpoints that were refused");
                    let ended = matches!(error, CheckpointError::Log(_) | CheckpointError::Wait(_));
                    self.journal_failed |= ended;
                }
            }
            self.checkpoints.on_attempt(now, done.into());
            return done.is_ok() || !matches!(done, Err(CheckpointError::Sync(_)));
        }
        true
    }

    /// Checks after a while without hindrance: every write is recorded and held, and a checkpoint was made.
    fn check_nothing_due(mount: &mut MaintainedMount<'_>) {
        mount.hit("files: lulls");
        let status = mount.directory.status();
        if status.dirty > 0 || status.log.head < status.log.tail {
            fail(
                17,
                format!(
                    "{} files wait for a checkpoint, the journal has {} to {}, and nothing hinders it",
                    status.dirty, status.log.head, status.log.tail
                ),
            );
        }
        mount.model.recorded_all();
    }
}
