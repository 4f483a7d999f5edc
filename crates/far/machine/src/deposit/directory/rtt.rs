//! How long a lender takes to answer, and from when on it is late: its mean and four times its mean
//! deviation, as TCP has it.

use crate::limit::{HEDGE_MAX, HEDGE_MIN};
use netram_proto::time::Nanos;

/// Of the mean, the part that one measurement is.
const SHARE: u64 = 8;
/// Of the mean deviation.
const DEVIATION_SHARE: u64 = 4;

/// Round trips to one lender, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LenderRtt {
    /// `None`: none was measured yet.
    mean: Option<u64>,
    deviation: u64,
}

impl LenderRtt {
    /// An answer took so long. Who stood still for longer than anybody waits is not measured by that.
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

    /// An answer that takes longer is late.
    pub(super) fn timeout(&self) -> Nanos {
        let usual = |mean: u64| Nanos(mean + 4 * self.deviation).clamp(HEDGE_MIN, HEDGE_MAX);
        self.mean.map_or(HEDGE_MAX, usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lender_is_late_by_what_it_usually_takes_and_neither_at_once_nor_never() {
        let mut trip = LenderRtt::default();
        assert_eq!(trip.timeout(), HEDGE_MAX, "nobody knows it yet");
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
        assert_eq!(trip.timeout(), HEDGE_MIN, "what was is forgotten");
    }
}
