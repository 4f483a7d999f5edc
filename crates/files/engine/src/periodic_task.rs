//! Schedule of a repeated task: recording pending writes, or checkpoints.
//!
//! An error never ends the task, except for a checkpoint on a failed disk, whose content is unknown.
//! `docs/design/directories.md` promises that a write is recorded within 50 ms; a thread that gave up would
//! break that promise for every later write.

use netram_proto::failure::RetryBackoff;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};

use crate::error::{ChangeError, CheckpointError};

/// Schedule of a task that is repeated at an interval and retried after errors.
#[derive(Clone, Copy, Debug)]
pub struct PeriodicTask {
    interval: Nanos,
    /// Latest time of the next attempt; after an error, the earliest.
    due: Time,
    backing_off: bool,
    ended: bool,
    backoff: RetryBackoff,
    planted: FaultSwitch,
}

/// Result of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOutcome {
    /// The attempt succeeded.
    Done,
    /// The attempt failed and will be repeated.
    Refused(IoError),
    /// The disk failed: there will be no further attempt.
    Final,
}

/// A change of state worth a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskNotice {
    /// The task failed for the first time, or for a different reason than before.
    Refused,
    /// The task succeeded after failures.
    Resumed {
        /// Number of failed attempts.
        refusals: u32,
    },
    /// No further attempt will be made.
    Ended,
}

impl PeriodicTask {
    /// Schedules the task every `every`, first at `now + every`.
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

    /// Whether the task should run now. With `presses` it runs before its time, unless the last attempt
    /// failed.
    pub fn is_due(&self, now: Time, presses: bool) -> bool {
        let due = self.due <= now;
        !self.ended && (due || presses && !self.backing_off)
    }

    /// Records an attempt and its outcome. Returns a notice if the state changed.
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

    /// Whether the task has ended for good.
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

/// Recording never ends: even after a disk failure, lenders may still get earlier writes.
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

    /// A catalog that did not fit on the disk ended all checkpoints, and with them the recording of writes.
    /// `netram mount recover` then removed files whose only copy was on the disk.
    #[test]
    fn no_error_ends_the_task() {
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
    fn a_failed_disk_ends_the_task() {
        let mut duty = duty();
        let failed: Result<(), CheckpointError> = Err(CheckpointError::Sync(IoError::EIO));
        assert_eq!(duty.on_attempt(Time(0), failed.into()), Some(TaskNotice::Ended));
        assert!(duty.has_stopped() && !duty.is_due(Time(u64::MAX), true));
        let refused: Result<(), CheckpointError> = Err(CheckpointError::Open(IoError::EMFILE));
        assert_eq!(TaskOutcome::from(refused), TaskOutcome::Refused(IoError::EMFILE));
    }
}
