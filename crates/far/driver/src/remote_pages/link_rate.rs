//! How fast a link carries what is put: by that it is decided whether to compress.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Of a mean, the part that one measurement is.
const SHARE: u64 = 8;

/// Frames of pages that are on their way over one link.
#[derive(Debug, Default)]
pub(super) struct LinkRate {
    in_flight: VecDeque<InFlightFrame>,
    landings: u64,
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct InFlightFrame {
    bytes: usize,
    /// How many had landed when it was sent.
    landings: u64,
}

impl LinkRate {
    /// A frame of pages is on its way.
    pub(super) fn sent(&mut self, bytes: usize) {
        let landings = self.landings;
        self.in_flight.push_back(InFlightFrame { bytes, landings });
    }

    /// The first of those on their way has landed. What it took counts if it was on its way when the one
    /// before it landed: else the link had nothing to carry for a while.
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
    fn a_link_that_rested_tells_nothing_and_one_that_had_more_to_carry_does() {
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
        // 50,000 bytes in 400 us: 8 ns a byte.
        pace.landed(at(10_400), &byte_ps);
        assert_eq!(byte_ps.load(Ordering::Relaxed), 8000);
        // What answers nothing is the machine's to refuse.
        pace.landed(at(11_000), &byte_ps);
        assert_eq!(byte_ps.load(Ordering::Relaxed), 8000);
    }
}
