//! Memory that a lender lends while its machine is short of memory.
//!
//! A [`MemoryPressure`] is told how much memory the machine has available, how long programs wait for memory,
//! and how much of it the lender has now. It returns how much the lender may have: the offer. Free memory
//! goes first, then pages ([`deposits_limit`]), then windows
//! ([`WindowReclaim`](netram_proto::reclaim::WindowReclaim)). From the deposits' limit follows what each
//! deposit is asked: [`level`] is the size above which each gives slots back, so that the largest are asked
//! first and small ones are left alone; [`slots_to_keep`] is the number that one deposit is told.
//!
//! *Not here*: the source of the readings.

use alloc::vec::Vec;

use crate::limit::{
    PRESSURE_AVERAGE, PRESSURE_LOOK_FAR, PRESSURE_LOOK_NEAR, PRESSURE_LOOK_STALLS, PRESSURE_MARGIN_PART,
    PRESSURE_NEAR, PRESSURE_RATE, PRESSURE_STEPS, PRESSURE_WINDOW, RECLAIM_SLOTS_MAX,
};
use netram_proto::time::{Nanos, Time};

/// When a machine counts as short of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PressureSettings {
    /// Maximum bytes to lend, when there is no shortage.
    pub most: u64,
    /// Bytes that are lent whatever the machine lacks.
    pub least: u64,
    /// Bytes that should stay available; 0: not checked.
    pub keep_free: u64,
    /// Part of the time, in hundredths of a percent, for which some program may wait for memory; 0: not
    /// checked.
    pub waits: u32,
    /// Time for which memory must have been available before more is lent.
    pub calm: Nanos,
}

/// A reading of the machine's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryReading {
    /// Bytes available to programs; `None`: unknown.
    pub available: Option<u64>,
    /// Recent part of the time, in hundredths of a percent, in which some program waited for memory; `None`:
    /// unknown.
    pub waited: Option<u32>,
    /// Whether the kernel has reported since the last reading that programs waited for longer than allowed.
    pub stalled: bool,
}

/// The bytes that a lender offers now, and when the machine is looked at again.
#[derive(Clone, Debug)]
pub struct MemoryPressure {
    settings: PressureSettings,
    limit: u64,
    /// Time since when memory has been sufficient.
    calm: Option<Time>,
    /// Time of the last reduction because programs waited.
    stepped: Option<Time>,
    /// Whether memory has been lacking and not been sufficient for long enough since.
    short: bool,
}

impl MemoryPressure {
    /// Starts with a lender that has `taken` bytes; the rest up to the maximum counts as given back before.
    pub fn new(settings: PressureSettings, taken: u64) -> MemoryPressure {
        assert!(settings.least <= settings.most);
        let mut pressure = MemoryPressure {
            limit: settings.most,
            settings,
            calm: None,
            stepped: None,
            short: false,
        };
        if pressure.is_on() {
            pressure.limit = taken.clamp(settings.least, settings.most);
        }
        pressure
    }

    /// Whether anything is checked.
    pub fn is_on(&self) -> bool {
        self.settings.keep_free > 0 || self.settings.waits > 0
    }

    /// Maximum bytes that the lender may have now.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether the limit is below its maximum.
    pub fn is_pressed(&self) -> bool {
        self.limit < self.settings.most
    }

    /// Whether the machine lacks memory, or has not had enough for long enough since.
    pub fn is_short(&self) -> bool {
        self.short
    }

    /// Changes the maximum, at the operator's order, and the bytes that are lent whatever the machine lacks.
    /// A larger offer follows the readings.
    pub fn resize(&mut self, most: u64, least: u64) {
        (self.settings.most, self.settings.least) = (most, least.min(most));
        self.limit = match self.is_on() {
            true => self.limit.clamp(self.settings.least, most),
            false => most,
        };
        self.calm = None;
    }

    /// Adjusts the limit to a reading. `taken`: bytes of the machine's memory that the lender has now.
    pub fn read(&mut self, now: Time, reading: MemoryReading, taken: u64) {
        let PressureSettings { keep_free, waits, .. } = self.settings;
        let available = reading.available.filter(|_| keep_free > 0);
        let short = available.map_or(0, |available| keep_free.saturating_sub(available));
        // The kernel also counts waits of groups at their own limits, which memory given back does not help.
        let counts = self.is_near(available) && waits > 0;
        let waited = reading.waited.filter(|_| counts).unwrap_or(0);
        if short > 0 {
            // Memory on its way back is not available yet: `taken` and `short` shrink together.
            self.reduce_to(taken.saturating_sub(short));
        } else if counts && (reading.stalled || waited >= waits) {
            self.step_down(now, reading.stalled, taken);
        } else {
            let margin = keep_free + keep_free / PRESSURE_MARGIN_PART;
            let spare = available.map(|available| available.saturating_sub(margin));
            let quiet = spare != Some(0) && (waits == 0 || waited < waits.div_ceil(2));
            self.rise(now, quiet, spare);
        }
    }

    /// Time until the next reading. Programs need longer to take what is spare: a lender of an idle machine
    /// hardly wakes, and one whose machine is nearly full looks often. `wakes`: the kernel tells of stalls.
    pub fn pace(&self, reading: MemoryReading, wakes: bool) -> Nanos {
        let PressureSettings {
            keep_free,
            waits,
            calm,
            ..
        } = self.settings;
        let available = reading.available.filter(|_| keep_free > 0);
        let spare = available.map_or(u64::MAX, |available| available.saturating_sub(keep_free));
        let mut pace = PRESSURE_LOOK_FAR.min(Nanos::from_ms(spare / (PRESSURE_RATE / 1000)));
        if waits > 0 && !wakes && self.is_near(available) {
            pace = pace.min(PRESSURE_LOOK_STALLS);
        }
        if self.short || self.is_pressed() {
            pace = pace.min(Nanos(calm.0 / 2));
        }
        pace.max(PRESSURE_LOOK_NEAR)
    }

    /// Whether so little memory is available that programs may wait because the lender has too much.
    fn is_near(&self, available: Option<u64>) -> bool {
        let near = self.settings.keep_free.saturating_mul(PRESSURE_NEAR);
        available.is_none_or(|available| available < near)
    }

    fn reduce_to(&mut self, limit: u64) {
        self.limit = self.limit.min(limit).max(self.settings.least);
        self.calm = None;
        self.short = true;
    }

    /// Reduces the limit by a step because programs wait and the amount that would help is unknown. The next
    /// step waits until the kernel's measure shows the effect.
    fn step_down(&mut self, now: Time, stalled: bool, taken: u64) {
        let pause = if stalled {
            PRESSURE_WINDOW
        } else {
            PRESSURE_AVERAGE
        };
        self.calm = None;
        if self.stepped.is_some_and(|at| now.since(at) < pause) {
            return;
        }
        self.stepped = Some(now);
        let part = self.settings.most.div_ceil(PRESSURE_STEPS);
        self.reduce_to(self.limit.min(taken).saturating_sub(part));
    }

    /// Raises the limit by half of the spare memory, if that has lasted. The next reading shows what remains.
    fn rise(&mut self, now: Time, quiet: bool, spare: Option<u64>) {
        if !quiet {
            self.calm = None;
            return;
        }
        let since = *self.calm.get_or_insert(now);
        if now.since(since) < self.settings.calm {
            return;
        }
        self.short = false;
        if !self.is_pressed() {
            return;
        }
        self.calm = Some(now);
        let more = spare.map_or(self.settings.most.div_ceil(PRESSURE_STEPS), |spare| {
            spare.div_ceil(2)
        });
        self.limit = self.limit.saturating_add(more).min(self.settings.most);
    }
}

/// Bytes of an offer that deposits may have, of `most`: windows keep theirs as long as there are pages to
/// leave.
pub fn deposits_limit(offer: u64, windows: u64, most: u64) -> u64 {
    offer.saturating_sub(windows).min(most)
}

/// Size above which each deposit gives memory back, so that all together take at most `limit`. If they take
/// less already: the size to which one of them could grow.
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

/// Number of slots that a deposit is told to keep. It is at least `level`. The excess is asked back in steps
/// from the highest slot on, so that immovable pages hold up only one step. `told`: what it was told last.
/// While there is a level, a deposit that was told once is told nothing else; a small one is not told at all.
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
            least: 0,
            keep_free,
            waits,
            calm: CALM,
        };
        MemoryPressure::new(settings, MOST)
    }

    fn available(bytes: u64) -> MemoryReading {
        MemoryReading {
            available: Some(bytes),
            ..MemoryReading::default()
        }
    }

    fn both(bytes: u64, waited: u32) -> MemoryReading {
        MemoryReading {
            available: Some(bytes),
            waited: Some(waited),
            stalled: false,
        }
    }

    #[test]
    fn a_shortage_is_asked_back_once() {
        let mut pressure = pressure(1000, 0);
        pressure.read(Time(1), available(1000), MOST);
        assert!(!pressure.is_pressed());
        pressure.read(Time(2), available(700), MOST);
        assert_eq!(pressure.limit(), MOST - 300);
        pressure.read(Time(3), available(700), MOST);
        pressure.read(Time(4), available(900), MOST - 200);
        pressure.read(Time(5), available(1000), MOST - 300);
        assert_eq!(pressure.limit(), MOST - 300);
        // Another program takes more.
        pressure.read(Time(6), available(950), MOST - 300);
        assert_eq!(pressure.limit(), MOST - 350);
        pressure.read(Time(7), available(0), 500);
        assert_eq!(pressure.limit(), 0, "the shortage exceeds what deposits have");
    }

    #[test]
    fn memory_is_lent_again_after_a_while_by_halves() {
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
        // Enough, but lending more would cause a new shortage.
        (0..9).for_each(|_| assert_eq!(look(&mut pressure, 1200), limit));
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1200), limit, "a short relief does not count");
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1450), limit);
        assert_eq!(look(&mut pressure, 1450), limit + 100);
        assert_eq!(look(&mut pressure, 1450), limit + 100);
        assert_eq!(look(&mut pressure, 1450), limit + 200);
        (0..99).for_each(|_| assert!(look(&mut pressure, 9000) <= MOST));
        assert!(!pressure.is_pressed());
    }

    #[test]
    fn waits_reduce_the_limit_once_per_averaging_time() {
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
        // Neither a little less waiting nor a moment without ends the pressure.
        pressure.read(later, both(50_000, 600), MOST - 2 * part);
        pressure.read(later + CALM, both(50_000, 600), MOST - 2 * part);
        pressure.read(later + CALM, both(50_000, 0), MOST - 2 * part);
        assert_eq!(pressure.limit(), MOST - 2 * part);
        pressure.read(later + CALM + CALM, both(50_000, 0), MOST - 2 * part);
        assert_eq!(pressure.limit(), MOST - part);
    }

    #[test]
    fn memory_given_back_before_the_start_is_lent_again() {
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
            "its end would go unnoticed"
        );
    }

    #[test]
    fn waits_do_not_count_while_much_memory_is_available() {
        let mut pressure = pressure(1000, 1000);
        pressure.read(Time(0), both(2000, 9999), MOST);
        assert!(!pressure.is_pressed(), "a group waits at its own limit");
        pressure.read(Time(0), both(1999, 9999), MOST);
        assert!(pressure.is_pressed());
    }

    #[test]
    fn without_readings_or_settings_there_is_no_pressure() {
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
    fn a_lender_keeps_its_least_and_is_short_until_memory_has_lasted() {
        let settings = PressureSettings {
            least: 400,
            ..pressure(1000, 0).settings
        };
        let mut pressure = MemoryPressure::new(settings, MOST);
        pressure.read(Time(0), available(0), MOST);
        pressure.read(Time(1), available(0), 600);
        assert_eq!(pressure.limit(), 400);
        assert!(pressure.is_short());
        pressure.read(Time(2), available(9000), 400);
        assert!(pressure.is_short(), "it may not last");
        pressure.read(Time(2) + CALM, available(9000), 400);
        assert!(!pressure.is_short());
        // All of it is always lent.
        let settings = PressureSettings {
            least: MOST,
            ..settings
        };
        let mut pressure = MemoryPressure::new(settings, MOST);
        pressure.read(Time(0), available(0), MOST);
        assert_eq!((pressure.limit(), pressure.is_short()), (MOST, true));
        pressure.read(Time(2), available(9000), MOST);
        pressure.read(Time(2) + CALM, available(9000), MOST);
        assert!(!pressure.is_short());
    }

    #[test]
    fn an_order_bounds_the_offer_at_once_and_raises_it_as_memory_allows() {
        let mut pressure = pressure(1000, 0);
        pressure.resize(300, 400);
        assert_eq!((pressure.limit(), pressure.is_pressed()), (300, false));
        pressure.read(Time(0), available(0), 300);
        assert_eq!(pressure.limit(), 300, "that much it always lends");
        pressure.resize(MOST, 400);
        assert_eq!(pressure.limit(), 400);
        pressure.read(Time(0), available(9000), 400);
        pressure.read(Time(0) + CALM, available(9000), 400);
        assert_eq!(pressure.limit(), MOST);
        let mut off = MemoryPressure::new(
            PressureSettings {
                keep_free: 0,
                ..pressure.settings
            },
            0,
        );
        off.resize(300, 0);
        off.resize(MOST, 0);
        assert_eq!(off.limit(), MOST);
    }

    #[test]
    fn a_stall_that_the_kernel_reports_counts_sooner_than_its_mean() {
        let mut pressure = pressure(1000, 1000);
        let part = MOST / PRESSURE_STEPS;
        let stalled = |bytes| MemoryReading {
            stalled: true,
            ..both(bytes, 0)
        };
        pressure.read(Time(0), stalled(2000), MOST);
        assert!(!pressure.is_pressed(), "a group waits at its own limit");
        pressure.read(Time(0), stalled(1999), MOST);
        pressure.read(Time(1), stalled(1999), MOST - part);
        assert_eq!(pressure.limit(), MOST - part);
        pressure.read(Time(0) + PRESSURE_WINDOW, stalled(1999), MOST - part);
        assert_eq!(pressure.limit(), MOST - 2 * part);
    }

    #[test]
    fn an_idle_machine_is_looked_at_rarely_and_a_full_one_often() {
        const GIB: u64 = 1 << 30;
        let settings = PressureSettings {
            most: GIB,
            least: 0,
            keep_free: GIB,
            waits: 1000,
            calm: CALM,
        };
        let mut pressure = MemoryPressure::new(settings, GIB);
        let pace = |pressure: &MemoryPressure, gib: u64| pressure.pace(available(gib * GIB), true);
        assert_eq!(pace(&pressure, 1000), PRESSURE_LOOK_FAR);
        let middle = pace(&pressure, 17);
        assert!((PRESSURE_LOOK_NEAR..PRESSURE_LOOK_FAR).contains(&middle));
        // Nobody takes what is spare before the next reading.
        assert!(16 * GIB >= PRESSURE_RATE / 1000 * (middle.0 / 1_000_000));
        assert_eq!(pace(&pressure, 1), PRESSURE_LOOK_NEAR);
        assert_eq!(pace(&pressure, 0), PRESSURE_LOOK_NEAR);
        pressure.read(Time(0), available(0), GIB);
        assert!(pace(&pressure, 1000) <= Nanos(CALM.0 / 2), "its end is noticed");
    }

    #[test]
    fn free_memory_goes_first_then_pages_then_windows() {
        assert_eq!(deposits_limit(100, 30, 50), 50);
        assert_eq!(deposits_limit(60, 30, 50), 30);
        assert_eq!(deposits_limit(20, 30, 50), 0);
    }

    #[test]
    fn the_largest_deposits_give_back_first() {
        let of = |sizes: &[u64], limit| level(sizes.iter().copied(), limit);
        assert_eq!(of(&[], 3), 3);
        assert_eq!(of(&[5, 9, 1], 17), 11, "one of them could grow");
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
    fn a_deposit_is_asked_back_in_steps_and_told_the_end() {
        let slots = 3 * RECLAIM_SLOTS_MAX;
        assert_eq!(slots_to_keep(slots, None, None), None);
        assert_eq!(slots_to_keep(slots, None, Some(slots)), None, "it is small");
        let first = slots_to_keep(slots, None, Some(100));
        assert_eq!(first, Some(2 * RECLAIM_SLOTS_MAX));
        assert_eq!(
            slots_to_keep(slots, first, Some(100)),
            first,
            "it cannot move its pages"
        );
        let second = slots_to_keep(2 * RECLAIM_SLOTS_MAX, first, Some(100));
        assert_eq!(second, Some(RECLAIM_SLOTS_MAX));
        assert_eq!(slots_to_keep(RECLAIM_SLOTS_MAX, second, Some(100)), Some(100));
        assert_eq!(
            slots_to_keep(100, Some(100), Some(100)),
            Some(100),
            "it must not grow yet"
        );
        assert_eq!(slots_to_keep(100, Some(100), None), None);
    }
}
