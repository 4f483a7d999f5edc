//! Decides whether background work is retried after a failure.
//!
//! [`FailureClass::DataLost`] ends the work at once. [`FailureClass::Retry`] never ends it: the work waits
//! for space, descriptors or memory as long as that takes. [`FailureClass::Report`] ends it after
//! [`FAILURE_PATIENCE`]: a disk that refuses every write has failed, and its users must learn so. Nothing is
//! lost either way: unwritten bytes stay where they were, and a later opening recovers them.

use crate::failure::{CallError, FailureClass, RetryBackoff, RetryPause};
use crate::limit::{FAILURE_PATIENCE, RETRY_PAUSE_MIN};
use crate::time::Time;

/// The failures of one piece of work since it last succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryPolicy {
    backoff: RetryBackoff,
    /// The time of the first failure in the current series of failures that may end the work.
    since: Option<Time>,
    last: Option<CallError>,
}

/// The reaction to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryVerdict {
    /// Retry the same work after the pause.
    Again(RetryPause),
    /// Give the file up and report it.
    GiveUp,
}

impl RetryPolicy {
    /// A policy without failures.
    pub const fn new() -> RetryPolicy {
        RetryPolicy {
            backoff: RetryBackoff::new(),
            since: None,
            last: None,
        }
    }

    /// Records a failure at `now`. `hurried` says that a caller is waiting for the work to end, successfully
    /// or not, as when a journal closes. Then no failure is retried for longer than [`FAILURE_PATIENCE`].
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
            // The time limit is short: a pause that has grown would use it up without a retry.
            pause.pause = pause.pause.min(RETRY_PAUSE_MIN);
        }
        RetryVerdict::Again(pause)
    }

    /// Records a success. Returns the number of failures before it.
    pub fn succeeded(&mut self) -> u32 {
        (self.since, self.last) = (None, None);
        self.backoff.succeeded()
    }

    /// The last failure, until the work succeeds.
    pub const fn failing(&self) -> Option<CallError> {
        self.last
    }
}
