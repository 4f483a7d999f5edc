//! Round-trip time of one listener, and the timeout after which its bytes count as lost (in the form of RFC
//! 6298).
//!
//! With a fixed timeout, a listener further away than it would look deaf, and everything would be sent twice.

use crate::limit::MULTICAST_TIMEOUT_MAX;
use crate::time::Nanos;

/// One listener's time from a multicast datagram to its answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RttEstimator {
    source: RttSource,
    smoothed: Nanos,
    deviation: Nanos,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RttSource {
    #[default]
    Nothing,
    /// Derived from an answer over the link, perhaps queued behind other frames.
    Guessed,
    Measured,
}

impl RttEstimator {
    /// Sets the estimate from an answer over the link, until a datagram's answer is measured.
    pub(crate) fn guess(&mut self, sample: Nanos) {
        if self.source != RttSource::Measured {
            self.begin(sample, RttSource::Guessed);
        }
    }

    /// Adds a measured datagram's answer. Costs three multiplications and shifts.
    pub(crate) fn measure(&mut self, sample: Nanos) {
        if self.source != RttSource::Measured {
            self.begin(sample, RttSource::Measured);
            return;
        }
        let sample = sample.0.min(MULTICAST_TIMEOUT_MAX.0);
        let off = sample.abs_diff(self.smoothed.0);
        self.deviation = Nanos((3 * self.deviation.0 + off) / 4);
        self.smoothed = Nanos((7 * self.smoothed.0 + sample) / 8);
    }

    /// How long to wait for an answer: at least `least` longer than usual.
    pub(crate) fn timeout(&self, least: Nanos) -> Nanos {
        let slack = (4 * self.deviation.0).max(least.0);
        Nanos((self.smoothed.0 + slack).min(MULTICAST_TIMEOUT_MAX.0.max(least.0)))
    }

    fn begin(&mut self, sample: Nanos, known: RttSource) {
        let sample = sample.0.min(MULTICAST_TIMEOUT_MAX.0);
        *self = RttEstimator {
            source: known,
            smoothed: Nanos(sample),
            deviation: Nanos(sample / 2),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Nanos = Nanos::from_ms(2);

    #[test]
    fn a_near_listener_has_a_short_timeout_and_a_far_one_a_long_one() {
        let mut trip = RttEstimator::default();
        assert_eq!(trip.timeout(LEAST), LEAST, "nothing is known yet");
        for _ in 0..100 {
            trip.measure(Nanos::from_us(50));
        }
        assert!(trip.timeout(LEAST) < Nanos::from_us(2100));
        let mut draw = 1_u64;
        for _ in 0..100 {
            draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            trip.measure(Nanos::from_us(10_000 + (draw >> 33) % 40_000));
        }
        assert!(trip.timeout(LEAST) > Nanos::from_ms(40));
        for _ in 0..100 {
            trip.measure(Nanos::from_us(50));
        }
        assert!(trip.timeout(LEAST) < Nanos::from_ms(3), "it is forgotten again");
    }

    #[test]
    fn a_guess_lasts_until_the_first_measurement_and_the_timeout_is_bounded() {
        let mut trip = RttEstimator::default();
        trip.guess(Nanos::from_ms(20));
        assert_eq!(trip.timeout(LEAST), Nanos::from_ms(60));
        trip.measure(Nanos::from_us(100));
        trip.guess(Nanos::from_ms(20));
        assert_eq!(trip.timeout(LEAST), Nanos::from_us(2100));
        trip.measure(Nanos(u64::MAX));
        trip.measure(Nanos(u64::MAX));
        assert_eq!(trip.timeout(LEAST), MULTICAST_TIMEOUT_MAX);
    }
}
