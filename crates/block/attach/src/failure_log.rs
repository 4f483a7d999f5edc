//! Logs failed requests, with a limit: repeated failures must not fill the log, which is in memory.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use netram_block::DeviceError;

/// Minimum interval between lines; a failing device fails each request of a busy file system.
const ERROR_LINE_EVERY: Duration = Duration::from_secs(1);

/// Failed requests of one device.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    count: Mutex<FailureCount>,
}

#[derive(Debug, Default)]
struct FailureCount {
    /// Number of failures since the last line.
    suppressed: u64,
    next_line: Option<Instant>,
}

impl FailureLog {
    /// Logs the failure, unless one was logged a moment ago. Returns the error number for the kernel.
    pub(crate) fn note(&self, what: &str, offset: u64, length: u64, error: &DeviceError) -> i32 {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let due = count.add(Instant::now());
        drop(count);
        if let Some(requests) = due {
            tracing::error!(requests, offset, length, %error, "requests failed, the last one a {what}");
        }
        error.errno()
    }
}

impl FailureCount {
    /// Counts a failure at `now`. Returns the number of failures for a line that is due now.
    fn add(&mut self, now: Instant) -> Option<u64> {
        self.suppressed += 1;
        if self.next_line.is_some_and(|next| now < next) {
            return None;
        }
        self.next_line = Some(now + ERROR_LINE_EVERY);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_failures_is_one_line_and_the_next_line_counts_the_rest() {
        let mut count = FailureCount::default();
        let start = Instant::now();
        assert_eq!(count.add(start), Some(1));
        for _ in 0..1000 {
            assert_eq!(count.add(start + ERROR_LINE_EVERY / 2), None);
        }
        assert_eq!(count.add(start + ERROR_LINE_EVERY), Some(1001));
        assert_eq!(count.add(start + ERROR_LINE_EVERY * 3), Some(1));
    }
}
