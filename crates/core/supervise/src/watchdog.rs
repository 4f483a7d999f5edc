//! Decides when a silent server counts as hung. It sends a heartbeat every [`HEARTBEAT_INTERVAL`], after it
//! has taken the locks that its requests take (`heartbeat.rs`). A server that waits for its disk or for
//! lenders still sends them.

use std::time::{Duration, Instant};

/// Interval of the server's heartbeats.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time between two looks that counts. A supervisor that was itself stopped, alone or with the
/// machine, received nothing in that time, which proves nothing.
const COUNTED_MAX: Duration = Duration::from_secs(2);

/// Silence of one server.
#[derive(Clone, Debug)]
pub(crate) struct Watchdog {
    /// Silence that counts as a hang; `None`: none does, or the server has announced its end.
    limit: Option<Duration>,
    silent: Duration,
    looked: Instant,
}

impl Watchdog {
    /// Watches a server that is started at `now`.
    pub(crate) fn new(limit: Option<Duration>, now: Instant) -> Watchdog {
        Watchdog {
            limit,
            silent: Duration::ZERO,
            looked: now,
        }
    }

    /// Records a look at `now`, with or without a message. Returns whether the server hangs; `true` only
    /// once.
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

    /// The server is about to end, however long that takes.
    pub(crate) fn end(&mut self) {
        self.limit = None;
    }

    /// Whether the server was healthy a moment ago.
    pub(crate) fn is_fresh(&self) -> bool {
        self.silent <= COUNTED_MAX
    }

    pub(crate) fn silent(&self) -> Duration {
        self.silent
    }
}

const _: () = assert!(
    HEARTBEAT_INTERVAL.as_nanos() < COUNTED_MAX.as_nanos(),
    "a healthy server must count as fresh"
);

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_silent_server_is_reported_once_and_one_with_timely_heartbeats_never() {
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
    fn a_supervisor_that_was_itself_stopped_takes_no_server_for_hung() {
        let start = Instant::now();
        let mut watchdog = Watchdog::new(Some(LIMIT), start);
        assert!(!watchdog.look(start + LIMIT * 100, false));
        assert!(!watchdog.look(start + LIMIT * 200, false));
        assert!(!watchdog.look(start + LIMIT * 300, true));
        assert_eq!(watchdog.silent(), Duration::ZERO);
    }

    #[test]
    fn a_server_that_is_ending_or_unwatched_may_be_silent() {
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
