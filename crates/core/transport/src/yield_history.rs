//! Whether it pays to yield: decided by how long a thread's last yields took.

use std::time::{Duration, Instant};

/// A yield that takes this long has met a thread that computes. Threads that pass messages keep a core for
/// some microseconds; the kernel's slices begin at 700.
pub const YIELD_SLOW: Duration = Duration::from_micros(300);
/// Longest pause. Each ends with a yield, which costs the thread a slice if it is slow again. The first pause
/// is as long as that yield was: if the other thread is gone by then, no more was lost than already was.
pub const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Number of quick yields in a row after which a slow one is taken for an accident and causes no pause.
pub const CALM_YIELDS: u8 = 64;

/// The last yields of one thread.
///
/// `sched_yield` lets the core's other threads run first. If one of them computes, it runs to the end of its
/// slice, about 3 ms, and a commit that takes 10 µs takes 4 ms. A thread that sleeps is put before it when it
/// is woken, so after two slow yields it is better to block. Each further one doubles the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldHistory {
    /// End of the pause; `None`: the last yield caused none.
    paused_until: Option<Instant>,
    /// Length of the last pause.
    pause: Duration,
    /// Quick yields in a row, up to [`CALM_YIELDS`].
    calm: u8,
}

impl YieldHistory {
    /// No yield so far.
    pub const NEW: YieldHistory = YieldHistory {
        paused_until: None,
        pause: Duration::ZERO,
        calm: CALM_YIELDS,
    };

    /// Notes a yield that ended at `now` and took `took`.
    pub fn note(&mut self, now: Instant, took: Duration) {
        if took < YIELD_SLOW {
            self.paused_until = None;
            self.calm = self.calm.saturating_add(1).min(CALM_YIELDS);
            return;
        }
        let was_calm = self.calm == CALM_YIELDS;
        self.pause = match was_calm {
            true => Duration::ZERO,
            false => took.max(self.pause * 2).min(PAUSE_MAX),
        };
        self.calm = 0;
        self.paused_until = (!was_calm).then_some(now + self.pause);
    }

    /// Whether the last yield caused a pause.
    pub fn has_paused(&self) -> bool {
        self.paused_until.is_some()
    }

    /// Whether the thread may yield: there is no pause at `now`.
    pub fn may_yield(&self, now: Instant) -> bool {
        self.paused_until.is_none_or(|until| until <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(2);
    const SLICE: Duration = Duration::from_millis(3);

    /// Yields whenever it may, for `time`, where each yield takes `took`; returns how many there were.
    fn yields(history: &mut YieldHistory, now: &mut Instant, time: Duration, took: Duration) -> u32 {
        let (end, mut count) = (*now + time, 0);
        while *now < end {
            if history.may_yield(*now) {
                *now += took;
                history.note(*now, took);
                count += 1;
            } else {
                *now += Duration::from_micros(50);
            }
        }
        count
    }

    #[test]
    fn a_thread_beside_one_that_computes_seldom_yields() {
        let (mut history, mut now) = (YieldHistory::NEW, Instant::now());
        let count = yields(&mut history, &mut now, Duration::from_secs(10), SLICE);
        // Pauses of 3, 6, 12 ms and so on up to a second: each costs a slice.
        assert!((15..25).contains(&count), "{count}");
        assert!(history.has_paused() && !history.may_yield(now));
        now += PAUSE_MAX;
        assert!(history.may_yield(now));
    }

    #[test]
    fn quick_yields_never_pause_and_a_slow_one_among_them_neither() {
        let (mut history, mut now) = (YieldHistory::NEW, Instant::now());
        yields(&mut history, &mut now, Duration::from_secs(10), SLICE);
        now += PAUSE_MAX;
        let quick = yields(&mut history, &mut now, Duration::from_millis(2), QUICK);
        assert_eq!(quick, 1000);
        history.note(now, SLICE);
        assert!(history.may_yield(now));
        history.note(now, SLICE);
        assert!(!history.may_yield(now + SLICE - QUICK) && history.may_yield(now + SLICE));
    }

    #[test]
    fn a_few_quick_yields_between_slow_ones_do_not_shorten_pauses() {
        let (mut history, now) = (YieldHistory::NEW, Instant::now());
        for _ in 0..20 {
            history.note(now, SLICE);
            (0..CALM_YIELDS - 1).for_each(|_| history.note(now, QUICK));
        }
        history.note(now, SLICE);
        assert!(!history.may_yield(now + PAUSE_MAX - QUICK) && history.may_yield(now + PAUSE_MAX));
    }
}
