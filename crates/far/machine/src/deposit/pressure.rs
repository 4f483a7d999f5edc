//! How much a lender lends to deposits while its machine is short of memory.
//!
//! A [`MemoryPressure`] is told what the machine has available, how long programs wait for memory there, and
//! how much deposits' part of the lent memory takes from it now; it says how much that part may take. What to
//! ask of which deposit follows: [`level`] is the size above which each gives back, so that those with the
//! most are asked first and those with little are left alone; [`slots_to_keep`] is what one is told.
//!
//! *Not here*: journals' windows, which are never made smaller, and where the numbers come from.

use alloc::vec::Vec;

use crate::limit::{
    PRESSURE_AVERAGE, PRESSURE_MARGIN_PART, PRESSURE_NEAR, PRESSURE_STEPS, RECLAIM_SLOTS_MAX,
};
use netram_proto::time::{Nanos, Time};

/// When a machine is short of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureSettings {
    /// The most bytes that deposits get when nobody is short of any.
    pub most: u64,
    /// So many bytes are to stay available; 0: that is not looked at.
    pub keep_free: u64,
    /// The part of the time, in hundredths of a percent, for which some program may wait for memory; 0: that
    /// is not looked at.
    pub waits: u32,
    /// More is lent again when memory has been available for so long.
    pub calm: Nanos,
}

/// What a machine says of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// Bytes that programs could have; `None`: it does not say.
    pub available: Option<u64>,
    /// The part of the time, of late, for which some program waited for memory, in hundredths of a percent;
    /// `None`: it does not say.
    pub waited: Option<u32>,
}

/// How much of the memory that is lent deposits may take.
#[derive(Clone, Debug)]
pub struct MemoryPressure {
    settings: PressureSettings,
    limit: u64,
    /// Since when there is memory to spare.
    calm: Option<Time>,
    /// When less was lent last because programs wait.
    stepped: Option<Time>,
}

impl MemoryPressure {
    /// Deposits' part takes so many bytes now; what it lacks was given back before.
    pub fn new(settings: PressureSettings, taken: u64) -> MemoryPressure {
        let mut pressure = MemoryPressure {
            limit: settings.most,
            settings,
            calm: None,
            stepped: None,
        };
        if pressure.is_on() {
            pressure.limit = settings.most.min(taken);
        }
        pressure
    }

    /// Whether anything is looked at.
    pub fn is_on(&self) -> bool {
        self.settings.keep_free > 0 || self.settings.waits > 0
    }

    /// The most bytes that deposits may take now.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether that is less than they get when nobody is short of memory.
    pub fn is_pressed(&self) -> bool {
        self.limit < self.settings.most
    }

    /// The machine has been looked at. `taken`: bytes that deposits' part takes from it now.
    pub fn read(&mut self, now: Time, reading: MemoryReading, taken: u64) {
        let PressureSettings { keep_free, waits, .. } = self.settings;
        let available = reading.available.filter(|_| keep_free > 0);
        let short = available.map_or(0, |available| keep_free.saturating_sub(available));
        // The kernel counts waits of groups that have a limit of their own, too; what is given back is of no
        // use to these.
        let near = available.is_none_or(|available| available < keep_free.saturating_mul(PRESSURE_NEAR));
        let waited = reading.waited.filter(|_| near && waits > 0).unwrap_or(0);
        if short > 0 {
            // What is still to be given back is not available yet: `taken` and `short` fall together.
            self.limit = self.limit.min(taken.saturating_sub(short));
            self.calm = None;
        } else if waits > 0 && waited >= waits {
            self.step_down(now, taken);
            self.calm = None;
        } else {
            let margin = keep_free + keep_free / PRESSURE_MARGIN_PART;
            let spare = available.map(|available| available.saturating_sub(margin));
            let quiet = spare != Some(0) && (waits == 0 || waited < waits.div_ceil(2));
            self.rise(now, quiet, spare);
        }
    }

    /// Programs wait, and how much would help is not known: a part less, and then it is waited until the mean
    /// shows it.
    fn step_down(&mut self, now: Time, taken: u64) {
        if self.stepped.is_some_and(|at| now.since(at) < PRESSURE_AVERAGE) {
            return;
        }
        self.stepped = Some(now);
        let part = self.settings.most.div_ceil(PRESSURE_STEPS);
        self.limit = self.limit.min(taken).saturating_sub(part);
    }

    /// Half of what there is to spare is lent again, if that has lasted: the next look tells what is left.
    fn rise(&mut self, now: Time, quiet: bool, spare: Option<u64>) {
        if !quiet || !self.is_pressed() {
            self.calm = None;
            return;
        }
        let since = *self.calm.get_or_insert(now);
        if now.since(since) < self.settings.calm {
            return;
        }
        self.calm = Some(now);
        let more = spare.map_or(self.settings.most.div_ceil(PRESSURE_STEPS), |spare| {
            spare.div_ceil(2)
        });
        self.limit = self.limit.saturating_add(more).min(self.settings.most);
    }
}

/// The size above which each of these gives back what it has, so that together they have `limit` at most. If
/// they have no more than that: the size that one of them could grow to.
pub fn level(sizes: impl Iterator<Item = u64>, limit: u64) -> u64 {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    let (mut left, mut count, mut largest) = (limit, sizes.len() as u64, 0);
    for size in sizes {
        let share = left / count;
        if size > share {
            return share;
        }
        (left, count, largest) = (left - size, count - 1, size);
    }
    largest + left
}

/// How many slots a deposit is told to keep: not fewer than `level`, and those from the highest on, a part at
/// a time, so that what cannot move keeps only that part. `told`: what it was told last. Who has been told is
/// told nothing else as long as there is a level; who has little is not told at all.
pub fn slots_to_keep(slots: u32, told: Option<u32>, level: Option<u32>) -> Option<u32> {
    let level = level?;
    let keep = level.max(slots.saturating_sub(RECLAIM_SLOTS_MAX));
    (slots > level || told.is_some()).then_some(keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = 1600;
    const CALM: Nanos = Nanos::from_ms(10_000);

    fn pressure(keep_free: u64, waits: u32) -> MemoryPressure {
        let settings = PressureSettings {
            most: MOST,
            keep_free,
            waits,
            calm: CALM,
        };
        MemoryPressure::new(settings, MOST)
    }

    fn available(bytes: u64) -> MemoryReading {
        MemoryReading {
            available: Some(bytes),
            waited: None,
        }
    }

    fn both(bytes: u64, waited: u32) -> MemoryReading {
        MemoryReading {
            available: Some(bytes),
            waited: Some(waited),
        }
    }

    #[test]
    fn what_is_missing_is_asked_for_once_however_long_it_takes_to_come() {
        let mut pressure = pressure(1000, 0);
        pressure.read(Time(1), available(1000), MOST);
        assert!(!pressure.is_pressed());
        pressure.read(Time(2), available(700), MOST);
        assert_eq!(pressure.limit(), MOST - 300);
        pressure.read(Time(3), available(700), MOST);
        pressure.read(Time(4), available(900), MOST - 200);
        pressure.read(Time(5), available(1000), MOST - 300);
        assert_eq!(pressure.limit(), MOST - 300);
        // Somebody else takes more.
        pressure.read(Time(6), available(950), MOST - 300);
        assert_eq!(pressure.limit(), MOST - 350);
        pressure.read(Time(7), available(0), 500);
        assert_eq!(pressure.limit(), 0, "more is missing than deposits have");
    }

    #[test]
    fn memory_is_lent_again_when_it_has_been_there_for_a_while_and_half_of_it_at_a_time() {
        let mut pressure = pressure(1000, 0);
        pressure.read(Time(0), available(0), MOST);
        let limit = pressure.limit();
        assert_eq!(limit, MOST - 1000);
        let mut now = Time(0);
        let mut look = |pressure: &mut MemoryPressure, bytes| {
            now = now + Nanos(CALM.0 / 2);
            pressure.read(now, available(bytes), limit);
            pressure.limit()
        };
        // Enough, but not by so much that lending some of it would do no harm.
        (0..9).for_each(|_| assert_eq!(look(&mut pressure, 1200), limit));
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1200), limit, "a moment is not a while");
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1450), limit + 100);
        assert_eq!(look(&mut pressure, 1450), limit + 100);
        assert_eq!(look(&mut pressure, 1450), limit + 200);
        (0..99).for_each(|_| assert!(look(&mut pressure, 9000) <= MOST));
        assert!(!pressure.is_pressed());
    }

    #[test]
    fn who_waits_for_memory_is_given_some_and_no_more_until_that_shows() {
        let mut pressure = pressure(0, 1000);
        let part = MOST / PRESSURE_STEPS;
        pressure.read(Time(0), both(50_000, 999), MOST);
        assert!(!pressure.is_pressed());
        pressure.read(Time(0), both(50_000, 1000), MOST);
        pressure.read(Time(1), both(50_000, 5000), MOST);
        assert_eq!(pressure.limit(), MOST - part);
        let later = Time(0) + PRESSURE_AVERAGE;
        pressure.read(later, both(50_000, 1000), MOST - part);
        assert_eq!(pressure.limit(), MOST - 2 * part);
        // Neither a little less nor a moment of nothing is the end of it.
        pressure.read(later, both(50_000, 600), MOST - 2 * part);
        pressure.read(later + CALM, both(50_000, 600), MOST - 2 * part);
        pressure.read(later + CALM, both(50_000, 0), MOST - 2 * part);
        assert_eq!(pressure.limit(), MOST - 2 * part);
        pressure.read(later + CALM + CALM, both(50_000, 0), MOST - 2 * part);
        assert_eq!(pressure.limit(), MOST - part);
    }

    #[test]
    fn what_was_given_back_before_is_lent_again_like_the_rest() {
        let settings = pressure(1000, 0).settings;
        let mut pressure = MemoryPressure::new(settings, 600);
        assert!(pressure.is_pressed());
        pressure.read(Time(0), available(9000), 600);
        assert_eq!(pressure.limit(), 600);
        pressure.read(Time(0) + CALM, available(9000), 600);
        assert!(!pressure.is_pressed());
        let never = PressureSettings {
            keep_free: 0,
            ..settings
        };
        assert!(
            !MemoryPressure::new(never, 600).is_pressed(),
            "nobody would see when it is over"
        );
    }

    #[test]
    fn waits_do_not_count_while_much_more_is_available_than_is_to_stay() {
        let mut pressure = pressure(1000, 1000);
        pressure.read(Time(0), both(2000, 9999), MOST);
        assert!(!pressure.is_pressed(), "a group waits at a limit of its own");
        pressure.read(Time(0), both(1999, 9999), MOST);
        assert!(pressure.is_pressed());
    }

    #[test]
    fn a_machine_that_says_nothing_and_a_lender_that_is_not_to_look_are_never_short() {
        for mut pressure in [pressure(1000, 1000), pressure(0, 0)] {
            pressure.read(Time(0), MemoryReading::default(), MOST);
            assert!(!pressure.is_pressed());
        }
        let mut off = pressure(0, 0);
        assert!(!off.is_on());
        off.read(Time(0), both(0, 9999), MOST);
        assert!(!off.is_pressed());
    }

    #[test]
    fn those_with_the_most_give_back_until_all_have_as_much() {
        let of = |sizes: &[u64], limit| level(sizes.iter().copied(), limit);
        assert_eq!(of(&[], 3), 3);
        assert_eq!(of(&[5, 9, 1], 17), 11, "there is room");
        assert_eq!(of(&[5, 9, 1], 15), 9);
        assert_eq!(of(&[5, 9, 1], 14), 8);
        assert_eq!(of(&[5, 9, 1], 9), 4);
        assert_eq!(of(&[5, 9, 1], 2), 0);
        assert_eq!(of(&[7], 0), 0);
        for limit in 0..40 {
            let sizes = [3, 8, 8, 20];
            let level = of(&sizes, limit);
            let kept: u64 = sizes.iter().map(|size| level.min(*size)).sum();
            assert!(
                kept <= limit.min(39) && (limit - kept < 4 || limit >= 39),
                "{limit}: {kept}"
            );
        }
    }

    #[test]
    fn a_deposit_is_asked_for_a_part_at_a_time_and_told_when_it_is_over() {
        let slots = 3 * RECLAIM_SLOTS_MAX;
        assert_eq!(slots_to_keep(slots, None, None), None);
        assert_eq!(slots_to_keep(slots, None, Some(slots)), None, "it has little");
        let first = slots_to_keep(slots, None, Some(100));
        assert_eq!(first, Some(2 * RECLAIM_SLOTS_MAX));
        assert_eq!(
            slots_to_keep(slots, first, Some(100)),
            first,
            "it has nowhere to go"
        );
        let second = slots_to_keep(2 * RECLAIM_SLOTS_MAX, first, Some(100));
        assert_eq!(second, Some(RECLAIM_SLOTS_MAX));
        assert_eq!(slots_to_keep(RECLAIM_SLOTS_MAX, second, Some(100)), Some(100));
        assert_eq!(
            slots_to_keep(100, Some(100), Some(100)),
            Some(100),
            "it is not to grow yet"
        );
        assert_eq!(slots_to_keep(100, Some(100), None), None);
    }
}
