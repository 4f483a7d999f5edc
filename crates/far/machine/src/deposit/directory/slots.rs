//! The slots of one deposit, as its owner sees them: their number, the free ones, and those that the lender
//! wants back.

use alloc::vec::Vec;

use crate::limit::DEPOSIT_SLOTS_MAX;

/// Slots of a deposit, numbered from 0. A deposit loses only slots that its owner gave back.
#[derive(Clone, Debug)]
pub(super) struct LenderSlots {
    count: u32,
    /// Free slots; the last one is taken first.
    free: Vec<u32>,
    /// Empty slots that get no page, because the lender wants them back.
    idle: Vec<u32>,
    /// The lender wants back all slots from this one on.
    keep: u32,
}

impl LenderSlots {
    pub(super) fn none() -> LenderSlots {
        LenderSlots {
            count: 0,
            free: Vec::new(),
            idle: Vec::new(),
            keep: DEPOSIT_SLOTS_MAX,
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Number of slots with a page.
    pub(super) fn used(&self) -> u32 {
        self.count - (self.free.len() + self.idle.len()) as u32
    }

    /// Number of slots that a page may go to.
    pub(super) fn free(&self) -> u32 {
        self.free.len() as u32
    }

    /// Slots without a page.
    pub(super) fn vacant(&self) -> impl Iterator<Item = u32> {
        self.free.iter().chain(&self.idle).copied()
    }

    /// The lender wants back all slots from this one on.
    pub(super) fn keep(&self) -> u32 {
        self.keep
    }

    /// Whether the lender wants slots back.
    pub(super) fn has_reclaim(&self) -> bool {
        self.keep < DEPOSIT_SLOTS_MAX
    }

    /// Number of slots that the lender wants back.
    pub(super) fn asked_back(&self) -> u32 {
        self.count.saturating_sub(self.keep)
    }

    /// Whether the lender wants this slot back.
    pub(super) fn wants_back(&self, slot: u32) -> bool {
        slot >= self.keep
    }

    /// Whether the lender wants slots back and all of them are empty.
    pub(super) fn is_vacated(&self) -> bool {
        self.asked_back() > 0 && self.idle.len() as u32 == self.asked_back()
    }

    /// The lender wants back all slots from `keep` on. This replaces its earlier request.
    pub(super) fn ask_back(&mut self, keep: u32) {
        self.keep = keep;
        let mut vacant: Vec<u32> = self.vacant().collect();
        vacant.sort_unstable_by(|one, other| other.cmp(one));
        (self.idle, self.free) = vacant.into_iter().partition(|slot| *slot >= keep);
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn give(&mut self, slot: u32) {
        match self.wants_back(slot) {
            true => self.idle.push(slot),
            false => self.free.push(slot),
        }
    }

    /// The deposit has this many slots now.
    pub(super) fn resize(&mut self, count: u32) {
        if count < self.count {
            self.free.retain(|slot| *slot < count);
            self.idle.retain(|slot| *slot < count);
        }
        // Lower slots are taken first.
        let new = (self.count..count).rev();
        let (idle, free): (Vec<u32>, Vec<u32>) = new.partition(|slot| self.wants_back(*slot));
        self.idle.extend(idle);
        self.free.splice(0..0, free);
        self.count = count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn with(count: u32) -> LenderSlots {
        let mut slots = LenderSlots::none();
        slots.resize(count);
        slots
    }

    #[test]
    fn the_lowest_slots_are_taken_first_except_those_wanted_back() {
        let mut slots = with(6);
        assert_eq!([slots.take(), slots.take()], [Some(0), Some(1)]);
        slots.ask_back(3);
        assert_eq!((slots.free(), slots.used(), slots.asked_back()), (1, 2, 3));
        assert_eq!([slots.take(), slots.take()], [Some(2), None]);
        slots.give(1);
        assert_eq!(slots.take(), Some(1));
    }

    #[test]
    fn slots_are_vacated_when_their_last_page_is_removed() {
        let mut slots = with(4);
        let taken: Vec<u32> = core::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken, vec![0, 1, 2, 3]);
        slots.ask_back(2);
        slots.give(3);
        assert!(!slots.is_vacated());
        slots.give(2);
        assert!(slots.is_vacated());
        slots.resize(2);
        assert!(!slots.is_vacated(), "the slots are gone");
        assert_eq!((slots.count(), slots.used(), slots.asked_back()), (2, 2, 0));
    }

    #[test]
    fn a_withdrawn_wish_frees_the_vacant_slots() {
        let mut slots = with(4);
        slots.ask_back(1);
        assert_eq!(slots.free(), 1);
        slots.ask_back(DEPOSIT_SLOTS_MAX);
        assert_eq!((slots.free(), slots.asked_back()), (4, 0));
        slots.ask_back(5);
        slots.resize(8);
        assert_eq!((slots.free(), slots.asked_back()), (5, 3));
        assert!(slots.is_vacated());
        assert_eq!(slots.take(), Some(0), "still the lowest");
    }
}
