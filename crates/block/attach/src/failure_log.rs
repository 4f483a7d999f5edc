//! Requests that failed: one that is tried again and again must not fill the log, which lies in memory.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use netram_block::DeviceError;

/// A failing device fails each request of a busy file system.
const ERROR_LINE_EVERY: Duration = Duration::from_secs(1);

/// Of one device.
#[derive(Debug, Default)]
pub(crate) struct FailureLog {
    count: Mutex<FailureCount>,
}

#[derive(Debug, Default)]
struct FailureCount {
    /// Since the last line about one.
    suppressed: u64,
    next_line: Option<Instant>,
}

impl FailureLog {
    /// Says what went wrong, unless it did so a moment ago, and gives the number that the kernel understands.
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
    /// One more failure, at `now`: how many a line that is due now stands for.
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
    fn a_burst_of_failures_is_one_line_and_the_next_line_counts_them() {
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
