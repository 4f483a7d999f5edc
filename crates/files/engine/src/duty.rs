//! What a thread owes again and again: recording what was written, and checkpoints.
//!
//! A refusal never ends it. The promise of `docs/mount.md` that a write is recorded within 50 ms holds as long as a folder is open, and a thread that gives up
//! takes it away from all that is written later. Only a failed disk ends checkpoints: nobody knows what it has.

use netram_proto::failure::RetryBackoff;
use netram_proto::planted::{Fault, Planted};
use netram_proto::port::IoError;
use netram_proto::time::{Span, Time};

use crate::error::{ChangeError, CheckpointError};

/// A piece of work that is owed again and again.
#[derive(Clone, Copy, Debug)]
pub struct Duty {
    every: Span,
    /// It is done no later than that; after a failure, no earlier.
    due: Time,
    resting: bool,
    ended: bool,
    backoff: RetryBackoff,
    planted: Planted,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It was refused, and is tried again.
    Refused(IoError),
    /// The disk failed: it is never tried again.
    Final,
}

/// News for whoever is on call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
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

impl Duty {
    /// Owed once in so long, for the first time so long from now.
    pub fn new(now: Time, every: Span, planted: Planted) -> Duty {
        Duty {
            every,
            due: now + every,
            resting: false,
            ended: false,
            backoff: RetryBackoff::new(),
            planted,
        }
    }

    /// Whether it is to be done now. `presses`: sooner than that, but not sooner after a refusal.
    pub fn is_due(&self, now: Time, presses: bool) -> bool {
        let due = self.due <= now;
        !self.ended && (due || presses && !self.resting)
    }

    /// It was tried.
    pub fn tried(&mut self, now: Time, outcome: Outcome) -> Option<Notice> {
        match outcome {
            Outcome::Done => {
                (self.due, self.resting) = (now + self.every, false);
                let refusals = self.backoff.succeeded();
                (refusals > 0).then_some(Notice::Resumed { refusals })
            }
            Outcome::Refused(error) => {
                let retry = self.backoff.failed(error);
                (self.due, self.resting) = (now + retry.pause, true);
                self.ended = self.planted.is(Fault::KeeperEnds);
                retry.news.then_some(Notice::Refused)
            }
            Outcome::Final => {
                self.ended = true;
                Some(Notice::Ended)
            }
        }
    }

    /// Whether it is never tried again.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

impl From<Result<(), CheckpointError>> for Outcome {
    fn from(done: Result<(), CheckpointError>) -> Outcome {
        match done {
            Ok(()) => Outcome::Done,
            Err(CheckpointError::Sync(_)) => Outcome::Final,
            Err(error) => Outcome::Refused(error.io()),
        }
    }
}

/// Recording has no end: where the disk failed, lenders may yet get what was written before.
impl From<Result<(), ChangeError>> for Outcome {
    fn from(done: Result<(), ChangeError>) -> Outcome {
        match done {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::Refused(error.io()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Span = Span::from_ms(5_000);

    fn duty() -> Duty {
        Duty::new(Time(0), EVERY, Planted::NONE)
    }

    /// A catalog that found no room ended all checkpoints, and with them the recording of what was written: `netram recover` removed files of which the only
    /// copy was the disk's.
    #[test]
    fn no_refusal_ends_it() {
        let mut duty = duty();
        let mut now = Time(0) + EVERY;
        for error in [IoError::ENOSPC, IoError::EMFILE, IoError::EACCES, IoError::EIO] {
            for round in 0..1000 {
                assert!(duty.is_due(now, false), "{error} {round}");
                let notice = duty.tried(now, Outcome::Refused(error));
                assert_eq!(notice, (round == 0).then_some(Notice::Refused));
                assert!(!duty.is_due(now, true), "not at once");
                now = now + Span::from_ms(1_000);
            }
        }
        let resumed = Notice::Resumed { refusals: 4_000 };
        assert_eq!(duty.tried(now, Outcome::Done), Some(resumed));
        assert!(!duty.is_due(now, false) && duty.is_due(now, true));
        assert!(duty.is_due(now + EVERY, false));
        assert_eq!(duty.tried(now, Outcome::Done), None);
    }

    #[test]
    fn a_failed_disk_ends_it() {
        let mut duty = duty();
        let failed: Result<(), CheckpointError> = Err(CheckpointError::Sync(IoError::EIO));
        assert_eq!(duty.tried(Time(0), failed.into()), Some(Notice::Ended));
        assert!(duty.has_ended() && !duty.is_due(Time(u64::MAX), true));
        let refused: Result<(), CheckpointError> = Err(CheckpointError::Open(IoError::EMFILE));
        assert_eq!(Outcome::from(refused), Outcome::Refused(IoError::EMFILE));
    }
}
