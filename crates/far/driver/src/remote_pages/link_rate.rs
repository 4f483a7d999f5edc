//! Measures how fast a link carries puts, which decides whether compressing pays.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Reciprocal of a new measurement's weight in the mean.
const SHARE: u64 = 8;

/// Frames of pages in flight on one link.
#[derive(Debug, Default)]
pub(super) struct LinkRate {
    in_flight: VecDeque<InFlightFrame>,
    landings: u64,
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct InFlightFrame {
    bytes: usize,
    /// Number of acknowledged frames when this one was sent.
    landings: u64,
}

impl LinkRate {
    /// Records that a frame of pages was sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        let landings = self.landings;
        self.in_flight.push_back(InFlightFrame { bytes, landings });
    }

    /// Records that the first frame in flight was acknowledged. Its time counts only if it was in flight when
    /// the previous one was acknowledged; otherwise the link was idle meanwhile.
    pub(super) fn landed(&mut self, now: Instant, byte_ps: &AtomicU64) {
        let flight = self.in_flight.pop_front();
        let last = self.last.replace(now);
        self.landings += 1;
        let (Some(flight), Some(last)) = (flight, last) else {
            return;
        };
        if flight.bytes == 0 || flight.landings + 1 >= self.landings {
            return;
        }
        let took = now.duration_since(last).as_nanos() as u64 * 1000 / flight.bytes as u64;
        let mean = match byte_ps.load(Ordering::Relaxed) {
            0 => took,
            mean => mean - mean / SHARE + took / SHARE,
        };
        byte_ps.store(mean, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_a_busy_link_is_measured() {
        let (mut pace, byte_ps, start) = (LinkRate::default(), AtomicU64::new(0), Instant::now());
        let at = |us| start + Duration::from_micros(us);
        pace.sent(50_000);
        pace.landed(at(1000), &byte_ps);
        pace.sent(50_000);
        pace.landed(at(9000), &byte_ps);
        assert_eq!(byte_ps.load(Ordering::Relaxed), 0);
        pace.sent(50_000);
        pace.sent(50_000);
        pace.landed(at(10_000), &byte_ps);
        // 50,000 bytes in 400 µs: 8 ns per byte.
        pace.landed(at(10_400), &byte_ps);
        assert_eq!(byte_ps.load(Ordering::Relaxed), 8000);
        // The machine refuses an answer without a frame.
        pace.landed(at(11_000), &byte_ps);
        assert_eq!(byte_ps.load(Ordering::Relaxed), 8000);
    }
}
