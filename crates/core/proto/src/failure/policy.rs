//! Whether a piece of work that upholds a promise is tried again after it failed.
//!
//! [`FailureClass::DataLost`] ends it at once. [`FailureClass::Retry`] never does: the work waits for room,
//! descriptors or memory as long as that takes. [`FailureClass::Report`] ends it after [`FAILURE_PATIENCE`]:
//! a disk that refuses every write is no disk, and whoever waits for it must hear so. Nothing is lost by
//! either: what was not written is where it was before, and a later opening recovers it.

use crate::failure::{CallError, FailureClass, RetryBackoff, RetryPause};
use crate::limit::{FAILURE_PATIENCE, RETRY_PAUSE_MIN};
use crate::time::Time;

/// The failures of one piece of work since it last succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    backoff: RetryBackoff,
    /// The time of the first failure of a row that may end the work.
    since: Option<Time>,
    last: Option<CallError>,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryVerdict {
    /// Try the same work again after the pause.
    Again(RetryPause),
    /// Give the file up, and say so.
    GiveUp,
}

impl RetryPolicy {
    /// No failure so far.
    pub const fn new() -> RetryPolicy {
        RetryPolicy {
            backoff: RetryBackoff::new(),
            since: None,
            last: None,
        }
    }

    /// The work failed at `now`. `hurried`: somebody waits for its end, whatever it be, as a closing journal
    /// does; then no failure is waited out for longer than [`FAILURE_PATIENCE`].
    pub fn failed(&mut self, failure: CallError, now: Time, hurried: bool) -> RetryVerdict {
        self.last = Some(failure);
        let patient = match failure.class() {
            FailureClass::DataLost => return RetryVerdict::GiveUp,
            FailureClass::Retry => !hurried,
            FailureClass::Report => false,
        };
        if patient {
            self.since = None;
        } else if now.since(*self.since.get_or_insert(now)) >= FAILURE_PATIENCE {
            return RetryVerdict::GiveUp;
        }
        let mut pause = self.backoff.failed(failure.error);
        if !patient {
            // The patience is short: a pause that has grown would use it up without a try.
            pause.pause = pause.pause.min(RETRY_PAUSE_MIN);
        }
        RetryVerdict::Again(pause)
    }

    /// The work succeeded. Returns how often it had failed before.
    pub fn succeeded(&mut self) -> u32 {
        (self.since, self.last) = (None, None);
        self.backoff.succeeded()
    }

    /// The last failure, until the work succeeds.
    pub const fn failing(&self) -> Option<CallError> {
        self.last
    }
}
