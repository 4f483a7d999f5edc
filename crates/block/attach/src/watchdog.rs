//! When a server that says nothing is to be taken for hung. It says a word once a [`HEARTBEAT_INTERVAL`],
//! after it has had the locks that its requests take (`pulse.rs`); one that waits for its disk or for lenders
//! goes on saying it.

use std::time::{Duration, Instant};

/// How often a server says that it is well.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Of the time between two looks no more counts: whoever was himself stopped, alone or with the machine, has
/// heard nothing meanwhile, and it proves nothing.
const COUNTED_MAX: Duration = Duration::from_secs(2);

/// How long one server has been silent.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog {
    /// Silence that means that it hangs; `None`: none does, or it has said that it ends.
    limit: Option<Duration>,
    silent: Duration,
    looked: Instant,
}

impl Watchdog {
    /// Of a server that is started at `now`.
    pub(crate) fn new(limit: Option<Duration>, now: Instant) -> Watchdog {
        Watchdog {
            limit,
            silent: Duration::ZERO,
            looked: now,
        }
    }

    /// Somebody has looked at `now` whether it said something; whether it hangs, which is told once.
    pub(crate) fn look(&mut self, now: Instant, heard: bool) -> bool {
        let passed = now.saturating_duration_since(self.looked).min(COUNTED_MAX);
        self.looked = now;
        self.silent = match heard {
            true => Duration::ZERO,
            false => self.silent + passed,
        };
        let hangs = self.limit.is_some_and(|limit| self.silent >= limit);
        if hangs {
            self.limit = None;
        }
        hangs
    }

    /// It is about to end, however long that takes.
    pub(crate) fn end(&mut self) {
        self.limit = None;
    }

    /// Whether it was well a moment ago.
    pub(crate) fn is_fresh(&self) -> bool {
        self.silent <= COUNTED_MAX
    }

    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }
}

const _: () = assert!(
    HEARTBEAT_INTERVAL.as_nanos() < COUNTED_MAX.as_nanos(),
    "one that is well stays fresh"
);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_silent_server_is_told_once_and_one_that_says_a_word_in_time_never_is() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Some(LIMIT), start);
        for second in 1..100 {
            let heard = second % 9 == 0;
            assert!(
                !watchdog.look(start + HEARTBEAT_INTERVAL * second, heard),
                "{second}"
            );
        }
        let told = (100..200).filter(|second| watchdog.look(start + HEARTBEAT_INTERVAL * *second, false));
        assert_eq!(told.collect::<Vec<_>>(), [109]);
        assert!(!watchdog.is_fresh());
        watchdog.look(start + HEARTBEAT_INTERVAL * 200, true);
        assert!(watchdog.is_fresh());
    }

    #[test]
    fn a_supervisor_that_was_itself_stopped_takes_nobody_for_hung() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Some(LIMIT), start);
        assert!(!watchdog.look(start + LIMIT * 100, false));
        assert!(!watchdog.look(start + LIMIT * 200, false));
        assert!(!watchdog.look(start + LIMIT * 300, true));
        assert_eq!(watchdog.silent(), Duration::ZERO);
    }

    #[test]
    fn who_is_about_to_end_or_is_not_to_be_watched_may_be_silent() {
        let start = Instant::now();
        for (limit, ends) in [(None, false), (Some(LIMIT), true)] {
            let mut watchdog = Watchdog::new(limit, start);
            if ends {
                watchdog.end();
            }
            assert!((1..100).all(|second| !watchdog.look(start + HEARTBEAT_INTERVAL * second, false)));
        }
    }
}
