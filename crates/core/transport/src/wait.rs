//! How a thread waits for the next packet: a setting of clients and lenders.

use std::cell::Cell;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::yield_history::YieldHistory;

/// Default microseconds of yielding. Longer than a round trip between two running processes, and short
/// compared with the 40-odd microseconds of a sleep and a wake-up.
pub const YIELD_US_DEFAULT: u32 = 50;
/// Maximum microseconds of yielding; a second or more is spinning in effect.
pub const YIELD_US_MAX: u32 = 1_000_000;

/// Behaviour of a thread while no packet arrives.
///
/// Measured over TCP loopback (128 bytes there, 8 back, one core each): spinning and yielding cost as much as
/// the bare round trip, and blocking 2.5 times as much. With more processes than cores spinning costs ten
/// times as much as yielding, so it needs dedicated cores. Yielding needs a core whose other threads soon
/// wait, too: a thread that computes keeps it for milliseconds, so a thread that meets one
/// [blocks](YieldHistory) for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitPolicy {
    /// Poll continuously. Uses a whole core.
    Spin,
    /// Poll and yield the core between polls for this long, then block; block at once while yielding takes
    /// long.
    Yield {
        /// Microseconds without a packet before blocking.
        us: u32,
    },
    /// Sleep in the kernel at once.
    Block,
}

/// The next action after a poll that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStep {
    /// Poll again.
    Poll,
    /// [`yield_core`], then poll again.
    Yield,
    /// Sleep in the kernel until something is ready.
    Block,
}

impl WaitPolicy {
    /// The calling thread's next action when nothing has arrived for `idle`.
    pub fn step(self, idle: Duration) -> WaitStep {
        match self {
            WaitPolicy::Spin => WaitStep::Poll,
            WaitPolicy::Yield { us } if idle < Duration::from_micros(us.into()) && may_yield() => {
                WaitStep::Yield
            }
            WaitPolicy::Yield { .. } | WaitPolicy::Block => WaitStep::Block,
        }
    }
}

thread_local! {
    static YIELDS: Cell<YieldHistory> = const { Cell::new(YieldHistory::NEW) };
}

/// Lets other threads run on the calling thread's core, and notes how long that takes. The next
/// [steps](WaitPolicy::step) of the thread depend on it.
pub fn yield_core() {
    let began = Instant::now();
    std::thread::yield_now();
    let now = Instant::now();
    let mut yields = YIELDS.get();
    yields.note(now, now.duration_since(began));
    YIELDS.set(yields);
}

/// Whether the calling thread should yield its core rather than block. Reads the clock only in a pause.
pub fn may_yield() -> bool {
    let yields = YIELDS.get();
    !yields.has_paused() || yields.may_yield(Instant::now())
}

impl Default for WaitPolicy {
    fn default() -> WaitPolicy {
        WaitPolicy::Yield { us: YIELD_US_DEFAULT }
    }
}

impl fmt::Display for WaitPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitPolicy::Spin => out.write_str("spin"),
            WaitPolicy::Yield { us } => write!(out, "yield:{us}"),
            WaitPolicy::Block => out.write_str("block"),
        }
    }
}

/// The text is not a [`WaitPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a wait policy: expected spin, yield:MICROSECONDS (at most 1000000) or block")]
pub struct WaitPolicyError;

impl FromStr for WaitPolicy {
    type Err = WaitPolicyError;

    fn from_str(text: &str) -> Result<WaitPolicy, WaitPolicyError> {
        match text {
            "spin" => Ok(WaitPolicy::Spin),
            "block" => Ok(WaitPolicy::Block),
            _ => {
                let us = text.strip_prefix("yield:").ok_or(WaitPolicyError)?;
                let us = us.parse().map_err(|_| WaitPolicyError)?;
                if us > YIELD_US_MAX {
                    Err(WaitPolicyError)
                } else {
                    Ok(WaitPolicy::Yield { us })
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn every_policy_prints_as_it_was_parsed() {
        for text in ["spin", "yield:50", "yield:0", "yield:1000000", "block"] {
            assert_eq!(text.parse::<WaitPolicy>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "Spin",
            "yield",
            "yield:",
            "yield:-1",
            "yield:1000001",
            "block:1",
        ] {
            assert!(text.parse::<WaitPolicy>().is_err(), "{text}");
        }
        assert_eq!(WaitPolicy::default().to_string(), "yield:50");
    }

    /// A commit that yields beside such a thread would take a slice instead of some microseconds.
    #[test]
    fn a_thread_beside_one_that_computes_blocks() {
        let done = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let core = rustix::thread::sched_getcpu();
            let pin = move || {
                let mut cores = rustix::thread::CpuSet::new();
                cores.set(core);
                rustix::thread::sched_setaffinity(None, &cores).unwrap();
            };
            let computing = Arc::clone(&done);
            scope.spawn(move || {
                pin();
                while !computing.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let waiting = scope.spawn(move || {
                pin();
                let policy = WaitPolicy::Yield { us: 50 };
                let until = Instant::now() + Duration::from_secs(20);
                while policy.step(Duration::ZERO) == WaitStep::Yield && Instant::now() < until {
                    yield_core();
                }
                policy.step(Duration::ZERO)
            });
            let step = waiting.join();
            done.store(true, Ordering::Relaxed);
            assert_eq!(step.unwrap(), WaitStep::Block);
        });
        assert_eq!(
            WaitPolicy::default().step(Duration::ZERO),
            WaitStep::Yield,
            "another thread's yields do not count"
        );
    }

    #[test]
    fn yielding_ends_in_sleep() {
        let policy = WaitPolicy::Yield { us: 50 };
        assert_eq!(policy.step(Duration::from_micros(49)), WaitStep::Yield);
        assert_eq!(policy.step(Duration::from_micros(50)), WaitStep::Block);
        assert_eq!(WaitPolicy::Spin.step(Duration::from_secs(9)), WaitStep::Poll);
        assert_eq!(WaitPolicy::Block.step(Duration::ZERO), WaitStep::Block);
    }
}
