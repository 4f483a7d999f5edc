//! Clock of a node's lease. It counts the time in which the machine sleeps, since the other nodes do not wait
//! for a sleeping machine and may get all locks. (`Instant` does not count that time.)

use std::time::Duration;

use netram_proto::time::Time;
use rustix::time::{ClockId, clock_gettime};

/// Counts from its creation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock(Duration);

impl Clock {
    pub(super) fn new() -> Clock {
        Clock(since_boot())
    }

    /// Time since the clock's creation.
    pub(super) fn now(self) -> Time {
        let nanoseconds = since_boot().saturating_sub(self.0).as_nanos();
        Time(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_the_machines_sleep() {
        // The kernel's own count of the time since boot, including sleep.
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        assert!((since_boot().as_secs_f64() - seconds).abs() < 60.0);
        let clock = Clock::new();
        std::thread::sleep(Duration::from_millis(2));
        assert!(clock.now() >= Time(2_000_000));
    }
}
