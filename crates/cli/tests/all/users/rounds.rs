//! How often a test does what it does, and the moments at which it kills.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::faults::harness::random::FaultsRandom;

/// The rounds of one test: a few, or as many as fit into `NETRAM_USERS_SECONDS`.
pub(crate) struct Rounds {
    pub(crate) random: FaultsRandom,
    least: u32,
    done: u32,
    until: Option<Instant>,
}

impl Rounds {
    /// At least `least` rounds. A failed test prints the seed.
    pub(crate) fn new(least: u32) -> Rounds {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let seed = number("NETRAM_USERS_SEED").unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.map_or(0, |since| since.as_nanos() as u64)
        });
        eprintln!("NETRAM_USERS_SEED={seed}");
        let seconds = number("NETRAM_USERS_SECONDS").map(Duration::from_secs);
        Rounds {
            random: FaultsRandom(seed),
            least,
            done: 0,
            until: seconds.map(|seconds| Instant::now() + seconds),
        }
    }

    /// Whether there is another one.
    pub(crate) fn another(&mut self) -> bool {
        let more = self.done < self.least || self.until.is_some_and(|until| Instant::now() < until);
        self.done += u32::from(more);
        more
    }

    /// Lets a workload run for a while, so that a crash finds it anywhere.
    pub(crate) fn let_it_run(&mut self, at_most: Duration) {
        let span = at_most.mul_f64(self.random.below(1000) as f64 / 1000.0);
        std::thread::sleep(span);
    }

    pub(crate) fn done(&self) -> u32 {
        self.done
    }
}
