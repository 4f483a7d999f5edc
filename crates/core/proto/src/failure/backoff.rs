//! When a thread that upholds a promise repeats a call that was refused, and when it says so.

use crate::limit::{RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use crate::port::IoError;
use crate::time::Nanos;

/// Doublings after which the pause has passed its maximum.
const DOUBLINGS_MAX: u32 = 8;

const _: () = assert!(RETRY_PAUSE_MIN.0 << DOUBLINGS_MAX >= RETRY_PAUSE_MAX.0);

/// The repetitions of one piece of work: how long to pause, and which failures are news.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetryBackoff {
    /// Failures since the last success.
    failures: u32,
    /// The last of them.
    last: Option<IoError>,
}

/// What to do after one failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPause {
    /// The time to wait before the work is tried again.
    pub pause: Nanos,
    /// Whether this failure is to be logged: the first one, and each whose cause is another than the one
    /// before.
    pub should_log: bool,
}

impl RetryBackoff {
    /// No failure so far.
    pub const fn new() -> RetryBackoff {
        RetryBackoff {
            failures: 0,
            last: None,
        }
    }

    /// The work failed. The pause doubles from [`RETRY_PAUSE_MIN`] up to [`RETRY_PAUSE_MAX`].
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

    /// The work succeeded. Returns how often it had failed before, zero if never: the end of a bad time is
    /// news, too.
    pub fn succeeded(&mut self) -> u32 {
        self.last = None;
        core::mem::take(&mut self.failures)
    }
}
