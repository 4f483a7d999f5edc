//! Response time of a lender, and the timeout after which it is late: the mean plus four times the mean
//! deviation, as in TCP.

use crate::limit::{HEDGE_MAX, HEDGE_MIN};
use netram_proto::time::Nanos;

/// Reciprocal of a new measurement's weight in the mean.
const SHARE: u64 = 8;
/// Reciprocal of a new measurement's weight in the mean deviation.
const DEVIATION_SHARE: u64 = 4;

/// Round-trip times of one lender, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LenderRtt {
    /// `None`: nothing measured yet.
    mean: Option<u64>,
    deviation: u64,
}

impl LenderRtt {
    /// Records a response time. It is capped at the longest timeout, so that one stall does not dominate.
    pub(super) fn record(&mut self, span: Nanos) {
        let took = span.0.min(HEDGE_MAX.0);
        let Some(mean) = self.mean else {
            (self.mean, self.deviation) = (Some(took), took / 2);
            return;
        };
        self.deviation =
            self.deviation - self.deviation / DEVIATION_SHARE + mean.abs_diff(took) / DEVIATION_SHARE;
        self.mean = Some(mean - mean / SHARE + took / SHARE);
    }

    /// Time after which an answer is late.
    pub(super) fn timeout(&self) -> Nanos {
        let usual = |mean: u64| Nanos(mean + 4 * self.deviation).clamp(HEDGE_MIN, HEDGE_MAX);
        self.mean.map_or(HEDGE_MAX, usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_response_time_within_its_bounds() {
        let mut trip = LenderRtt::default();
        assert_eq!(trip.timeout(), HEDGE_MAX, "nothing measured yet");
        trip.record(Nanos::from_us(20));
        assert_eq!(trip.timeout(), HEDGE_MIN);
        for _ in 0..100 {
            trip.record(Nanos::from_ms(80));
        }
        let usual = trip.timeout();
        assert!(
            usual > Nanos::from_ms(75) && usual < Nanos::from_ms(120),
            "{usual:?}"
        );
        trip.record(Nanos::from_ms(60_000));
        assert!(trip.timeout() > usual);
        for _ in 0..10 {
            trip.record(Nanos::from_ms(60_000));
        }
        assert_eq!(trip.timeout(), HEDGE_MAX);
        for _ in 0..200 {
            trip.record(Nanos::from_us(20));
        }
        assert_eq!(trip.timeout(), HEDGE_MIN, "old measurements fade");
    }
}
