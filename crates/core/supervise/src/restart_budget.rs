//! Limits how often, and how soon, a killed server is replaced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Period in which restarts are counted: servers that die in quick succession have a cause that another will
/// not fix.
const WINDOW: Duration = Duration::from_secs(600);
/// Base of the delay. The first server is replaced at once, because a file system waits; each further delay
/// is twice the one before.
const PAUSE: Duration = Duration::from_secs(1);

/// The restarts of one attachment.
#[derive(Clone, Debug)]
pub struct RestartBudget {
    /// Maximum number of restarts within [`WINDOW`]; `None`: no limit, and no delay.
    max: Option<u8>,
    recent: VecDeque<Instant>,
}

impl RestartBudget {
    /// Allows at most `max` restarts within ten minutes.
    pub fn new(max: u8) -> RestartBudget {
        RestartBudget {
            max: Some(max),
            recent: VecDeque::new(),
        }
    }

    /// Replaces every server at once, for tests that kill many.
    pub fn unlimited() -> RestartBudget {
        RestartBudget {
            max: None,
            recent: VecDeque::new(),
        }
    }

    /// A server has died at `now`: delay before the next one. `None`: it is not replaced any more.
    pub fn next(&mut self, now: Instant) -> Option<Duration> {
        let Some(max) = self.max else {
            return Some(Duration::ZERO);
        };
        let old = |time: &Instant| now.saturating_duration_since(*time) >= WINDOW;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        let before = self.recent.len();
        if before >= usize::from(max) {
            return None;
        }
        self.recent.push_back(now);
        Some(match before {
            0 => Duration::ZERO,
            more => PAUSE * (1 << (more - 1).min(5)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_limited_with_growing_delays_and_old_ones_expire() {
        let (mut restarts, start) = (RestartBudget::new(4), Instant::now());
        let pauses: Vec<Option<u64>> = (0..5)
            .map(|_| restarts.next(start).map(|pause| pause.as_secs()))
            .collect();
        assert_eq!(pauses, [Some(0), Some(1), Some(2), Some(4), None]);
        assert_eq!(restarts.next(start + WINDOW / 2), None);
        assert_eq!(restarts.next(start + WINDOW), Some(Duration::ZERO));
        assert_eq!(RestartBudget::new(0).next(start), None);
        let mut all = RestartBudget::unlimited();
        assert!((0..1000).all(|_| all.next(start) == Some(Duration::ZERO)));
    }
}
