//! How a thread waits for the next packet: a setting of clients and lenders.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Default microseconds of yielding. Longer than a round trip between two running processes, and short
/// compared with the 40-odd microseconds of a sleep and a wake-up.
pub const YIELD_US_DEFAULT: u32 = 50;
/// Maximum microseconds of yielding; a second or more is spinning in effect.
pub const YIELD_US_MAX: u32 = 1_000_000;

/// Behaviour of a thread while no packet arrives.
///
/// Measured over TCP loopback (128 bytes there, 8 back, one core each): spinning and yielding cost as much as
/// the bare round trip, and blocking 2.5 times as much. With more processes than cores spinning costs ten
/// times as much as yielding, so it needs dedicated cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitPolicy {
    /// Poll continuously. Uses a whole core.
    Spin,
    /// Poll and yield the core between polls for this long, then block.
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
    /// `sched_yield`, then poll again.
    Yield,
    /// Sleep in the kernel until something is ready.
    Block,
}

impl WaitPolicy {
    /// The next action when nothing has arrived for `idle`.
    pub fn step(self, idle: Duration) -> WaitStep {
        match self {
            WaitPolicy::Spin => WaitStep::Poll,
            WaitPolicy::Yield { us } if idle < Duration::from_micros(us.into()) => WaitStep::Yield,
            WaitPolicy::Yield { .. } | WaitPolicy::Block => WaitStep::Block,
        }
    }
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

    #[test]
    fn yielding_ends_in_sleep() {
        let policy = WaitPolicy::Yield { us: 50 };
        assert_eq!(policy.step(Duration::from_micros(49)), WaitStep::Yield);
        assert_eq!(policy.step(Duration::from_micros(50)), WaitStep::Block);
        assert_eq!(WaitPolicy::Spin.step(Duration::from_secs(9)), WaitStep::Poll);
        assert_eq!(WaitPolicy::Block.step(Duration::ZERO), WaitStep::Block);
    }
}
