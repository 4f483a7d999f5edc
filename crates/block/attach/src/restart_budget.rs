//! How often a killed server is replaced, and how soon.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Servers that die one after the other die of something that another will not mend.
const WINDOW: Duration = Duration::from_secs(600);
/// The first is replaced at once, for a file system waits; each further one after twice as long as the one
/// before.
const PAUSE: Duration = Duration::from_secs(1);

/// The restarts of one attachment.
#[derive(Clone, Debug)]
pub struct RestartBudget {
    /// At most so many within [`WINDOW`].
    max: u8,
    recent: VecDeque<Instant>,
}

impl RestartBudget {
    /// At most `max` within ten minutes.
    pub fn new(max: u8) -> RestartBudget {
        RestartBudget {
            max,
            recent: VecDeque::new(),
        }
    }

    /// A server has died at `now`: how long to wait before there is another. `None`: there is none any more.
    pub fn next(&mut self, now: Instant) -> Option<Duration> {
        let old = |time: &Instant| now.saturating_duration_since(*time) >= WINDOW;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        let before = self.recent.len();
        if before >= usize::from(self.max) {
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
    fn restarts_are_bounded_and_their_pauses_grow_and_old_ones_are_forgiven() {
        let (mut restarts, start) = (RestartBudget::new(4), Instant::now());
        let pauses: Vec<Option<u64>> = (0..5)
            .map(|_| restarts.next(start).map(|pause| pause.as_secs()))
            .collect();
        assert_eq!(pauses, [Some(0), Some(1), Some(2), Some(4), None]);
        assert_eq!(restarts.next(start + WINDOW / 2), None);
        assert_eq!(restarts.next(start + WINDOW), Some(Duration::ZERO));
        assert_eq!(RestartBudget::new(0).next(start), None);
    }
}
