//! What a thread owes again and again: recording what was written, and checkpoints.
//!
//! A refusal never ends it. The promise of `docs/mount.md` that a write is recorded within 50 ms holds as
//! long as a directory is open, and a thread that gives up takes it away from all that is written later. Only
//! a failed disk ends checkpoints: nobody knows what it has.

use netram_proto::failure::RetryBackoff;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};

use crate::error::{ChangeError, CheckpointError};

/// A piece of work that is owed again and again.
#[derive(Clone, Copy, Debug)]
pub struct PeriodicTask {
    interval: Nanos,
    /// It is done no later than that; after a failure, no earlier.
    due: Time,
    backing_off: bool,
    ended: bool,
    backoff: RetryBackoff,
    planted: FaultSwitch,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// It is done.
    Done,
    /// It was refused, and is tried again.
    Refused(IoError),
    /// The disk failed: it is never tried again.
    Final,
}

/// News for whoever is on call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskNotice {
    /// It was refused, for the first time or for another reason than before.
    Refused,
    /// It is done again after so many refusals.
    Resumed {
        /// How often it was refused in between.
        refusals: u32,
    },
    /// It is never tried again.
    Ended,
}

impl PeriodicTask {
    /// Owed once in so long, for the first time so long from now.
    pub fn new(now: Time, every: Nanos, planted: FaultSwitch) -> PeriodicTask {
        PeriodicTask {
            interval: every,
            due: now + every,
            backing_off: false,
            ended: false,
            backoff: RetryBackoff::new(),
            planted,
        }
    }

    /// Whether it is to be done now. `presses`: sooner than that, but not sooner after a refusal.
    pub fn is_due(&self, now: Time, presses: bool) -> bool {
        let due = self.due <= now;
        !self.ended && (due || presses && !self.backing_off)
    }

    /// It was tried.
    pub fn on_attempt(&mut self, now: Time, outcome: TaskOutcome) -> Option<TaskNotice> {
        match outcome {
            TaskOutcome::Done => {
                (self.due, self.backing_off) = (now + self.interval, false);
                let refusals = self.backoff.succeeded();
                (refusals > 0).then_some(TaskNotice::Resumed { refusals })
            }
            TaskOutcome::Refused(error) => {
                let retry = self.backoff.failed(error);
                (self.due, self.backing_off) = (now + retry.pause, true);
                self.ended = self.planted.is(PlantedFault::ServiceThreadEnds);
                retry.should_log.then_some(TaskNotice::Refused)
            }
            TaskOutcome::Final => {
                self.ended = true;
                Some(TaskNotice::Ended)
            }
        }
    }

    /// Whether it is never tried again.
    pub fn has_stopped(&self) -> bool {
        self.ended
    }
}

impl From<Result<(), CheckpointError>> for TaskOutcome {
    fn from(done: Result<(), CheckpointError>) -> TaskOutcome {
        match done {
            Ok(()) => TaskOutcome::Done,
            Err(CheckpointError::Sync(_)) => TaskOutcome::Final,
            Err(error) => TaskOutcome::Refused(error.io()),
        }
    }
}

/// Recording has no end: where the disk failed, lenders may yet get what was written before.
impl From<Result<(), ChangeError>> for TaskOutcome {
    fn from(done: Result<(), ChangeError>) -> TaskOutcome {
        match done {
            Ok(()) => TaskOutcome::Done,
            Err(error) => TaskOutcome::Refused(error.io()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Nanos = Nanos::from_ms(5_000);

    fn duty() -> PeriodicTask {
        PeriodicTask::new(Time(0), EVERY, FaultSwitch::NONE)
    }

    /// A catalog that found no room ended all checkpoints, and with them the recording of what was written:
    /// `netram recover` removed files of which the only copy was the disk's.
    #[test]
    fn no_refusal_ends_it() {
        let mut duty = duty();
        let mut now = Time(0) + EVERY;
        for error in [IoError::ENOSPC, IoError::EMFILE, IoError::EACCES, IoError::EIO] {
            for round in 0..1000 {
                assert!(duty.is_due(now, false), "{error} {round}");
                let notice = duty.on_attempt(now, TaskOutcome::Refused(error));
                assert_eq!(notice, (round == 0).then_some(TaskNotice::Refused));
                assert!(!duty.is_due(now, true), "not at once");
                now = now + Nanos::from_ms(1_000);
            }
        }
        let resumed = TaskNotice::Resumed { refusals: 4_000 };
        assert_eq!(duty.on_attempt(now, TaskOutcome::Done), Some(resumed));
        assert!(!duty.is_due(now, false) && duty.is_due(now, true));
        assert!(duty.is_due(now + EVERY, false));
        assert_eq!(duty.on_attempt(now, TaskOutcome::Done), None);
    }

    #[test]
    fn a_failed_disk_ends_it() {
        let mut duty = duty();
        let failed: Result<(), CheckpointError> = Err(CheckpointError::Sync(IoError::EIO));
        assert_eq!(duty.on_attempt(Time(0), failed.into()), Some(TaskNotice::Ended));
        assert!(duty.has_stopped() && !duty.is_due(Time(u64::MAX), true));
        let refused: Result<(), CheckpointError> = Err(CheckpointError::Open(IoError::EMFILE));
        assert_eq!(TaskOutcome::from(refused), TaskOutcome::Refused(IoError::EMFILE));
    }
}
