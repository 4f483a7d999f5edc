//! Retry timing for background work: how long to pause after a refused call, and which failures to log.

use crate::limit::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use crate::port::IoError;
use crate::time::Nanos;

/// Number of doublings after which the pause has reached its maximum.
const DOUBLINGS_MAX: u32 = 8;

const _: () = assert!(RETRY_PAUSE_MIN.0 << DOUBLINGS_MAX >= RETRY_PAUSE_MAX.0);

/// The retries of one piece of work: how long to pause, and which failures to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryBackoff {
    /// Failures since the last success.
    failures: u32,
    /// The error of the last failure.
    last: Option<IoError>,
}

/// The reaction to one failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPause {
    /// The time to wait before the work is tried again.
    pub pause: Nanos,
    /// Whether to log this failure: the first one, and each whose error differs from the one before.
    pub should_log: bool,
}

impl RetryBackoff {
    /// A backoff without failures.
    pub const fn new() -> RetryBackoff {
        RetryBackoff {
            failures: 0,
            last: None,
        }
    }

    /// Records a failure. The pause doubles from [`RETRY_PAUSE_MIN`] up to [`RETRY_PAUSE_MAX`].
    pub fn failed(&mut self, error: IoError) -> RetryPause {
        let news = self.last != Some(error);
        let grown = RETRY_PAUSE_MIN.0 << self.failures.min(DOUBLINGS_MAX);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(error);
        RetryPause {
            pause: Nanos(grown.min(RETRY_PAUSE_MAX.0)),
            should_log: news,
        }
    }

    /// Records a success. Returns the number of failures before it, so that the caller can log the end of the
    /// trouble.
    pub fn succeeded(&mut self) -> u32 {
        self.last = None;
        core::mem::take(&mut self.failures)
    }
}
