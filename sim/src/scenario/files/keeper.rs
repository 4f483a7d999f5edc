//! The two threads of a mount: what they owe, and that they do it.

use netram_files::{ChangeError, CheckpointError, Duty};
use netram_proto::limit::RETRY_PAUSE_MAX;
use netram_proto::planted::Planted;
use netram_proto::time::{Span, Time};

use super::{Program, Tested};
use crate::check::fail;

/// How often the keeper looks, and how often it makes a checkpoint.
const LOOK_MS: u64 = 50;
const CHECKPOINT_MS: u64 = 700;
/// With nothing in its way for so long the keeper has done all that it owes: the longest pause after a refusal, and what is owed then.
const LULL: u64 = 2500;

const _: () = assert!(LULL > RETRY_PAUSE_MAX.ms() + CHECKPOINT_MS + 4 * LOOK_MS);

/// What the two threads of a mount owe.
pub(super) struct Keeper {
    recorder: Duty,
    checkpoints: Duty,
    /// The journal takes nothing any more, and nothing is owed.
    journal_failed: bool,
}

impl Keeper {
    pub(super) fn new(now: Time, planted: Planted) -> Keeper {
        Keeper {
            recorder: Duty::new(now, Span::from_ms(LOOK_MS), planted),
            checkpoints: Duty::new(now, Span::from_ms(CHECKPOINT_MS), planted),
            journal_failed: false,
        }
    }
}

impl Program {
    /// The program does nothing for so long, and the keeper's threads do what they owe.
    pub(super) fn keep(&mut self, process: usize, folder: &Tested, ms: u64) -> bool {
        if ms >= LULL {
            // Whatever was short is there again.
            self.disk.set_opens(true);
            self.disk.set_keeps(true);
        }
        let mut left = ms;
        while left > 0 {
            let step = left.min(LOOK_MS);
            left -= step;
            self.world.borrow_mut().run_for(Span::from_ms(step));
            let lives = self.world.borrow().alive(process);
            if !lives || !self.look(folder) {
                return false;
            }
            let mut world = self.world.borrow_mut();
            if world.died_of_tree(process) || !world.alive(process) {
                return false;
            }
        }
        let sound = folder.status().failed.is_none() && !self.keeper.journal_failed;
        if ms >= LULL && sound && !self.disk.is_failing() {
            self.is_kept(folder);
        }
        true
    }

    /// What the keeper's threads do whenever they look. `false`: this life is over.
    fn look(&mut self, folder: &Tested) -> bool {
        let now = self.world.borrow().now;
        if self.keeper.recorder.is_due(now, false) {
            self.model.asked_to_record_all();
            let done = folder.record_written();
            self.tell(|| format!("the keeper records: {done:?}"));
            self.keeper.journal_failed |= matches!(done, Err(ChangeError::Append(_) | ChangeError::Wait(_)));
            if done.is_err() {
                self.hit("files: recordings that were refused");
            }
            self.keeper.recorder.tried(now, done.into());
        }
        if self.keeper.checkpoints.is_due(now, folder.is_crowded()) {
            let done = folder.checkpoint();
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
                    self.keeper.journal_failed |= ended;
                }
            }
            self.keeper.checkpoints.tried(now, done.into());
            return done.is_ok() || !matches!(done, Err(CheckpointError::Sync(_)));
        }
        true
    }

    /// Nothing hindered the keeper for a while: all that was written is recorded and held, and a checkpoint was made.
    fn is_kept(&mut self, folder: &Tested) {
        self.hit("files: lulls");
        let status = folder.status();
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
