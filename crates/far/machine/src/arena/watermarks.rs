//! Watermarks: eviction begins below the low mark of free frames and ends at the high mark. The frames
//! between them absorb a burst of faults without waiting.

/// Divisor of the cap: at least this fraction of the frames stays free.
const SHARE: u32 = 32;
const LOW_MIN: u32 = 8;
/// 1 MiB: more than faults take while a batch is evicted.
const LOW_MAX: u32 = 256;

#[derive(Clone, Copy, Debug)]
pub(super) struct Watermarks {
    low: u32,
    high: u32,
    begun: bool,
}

impl Watermarks {
    pub(super) fn new(frames: u32) -> Watermarks {
        let low = (frames / SHARE).clamp(LOW_MIN, LOW_MAX);
        Watermarks {
            low,
            high: 2 * low,
            begun: false,
        }
    }

    /// Whether eviction has work while `free` frames are free.
    pub(super) fn wants(&mut self, free: u32) -> bool {
        if self.is_low(free) {
            self.begun = true;
        } else if free >= self.high {
            self.begun = false;
        }
        self.begun
    }

    pub(super) fn is_low(&self, free: u32) -> bool {
        free < self.low
    }

    /// Number of frames that prefetched pages may take.
    pub(super) fn spare(&self, free: u32) -> u32 {
        free.saturating_sub(self.low / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eviction_runs_from_the_low_mark_to_the_high_mark() {
        let mut marks = Watermarks::new(1024);
        assert!(!marks.wants(40));
        assert!(marks.wants(31));
        assert!(marks.wants(40));
        assert!(!marks.wants(64));
        assert!(!marks.wants(32));
        assert_eq!((marks.spare(64), marks.spare(16), marks.spare(3)), (48, 0, 0));
    }
}
