//! Something for each lock, found in a few nanoseconds: the locks in order of their coming, and an index of open addressing.
//!
//! Nothing is ever removed: a region has a bounded number of locks.

use alloc::vec;
use alloc::vec::Vec;

use crate::LockId;

const EMPTY: u32 = u32::MAX;
/// A prime near 2^32 divided by the golden ratio: neighbouring ids fall far apart.
const SPREAD: u32 = 2_654_435_769;
const PLACES_MIN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Table<T> {
    entries: Vec<(LockId, T)>,
    /// Where each lock is in `entries`; a power of two of them, half at most in use.
    places: Vec<u32>,
}

impl<T> Table<T> {
    pub(super) fn new() -> Table<T> {
        Table {
            entries: Vec::new(),
            places: vec![EMPTY; PLACES_MIN],
        }
    }

    /// Where `lock` is.
    #[inline]
    pub(super) fn find(&self, lock: LockId) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut place = self.first(lock);
        loop {
            let index = self.places[place];
            if index == EMPTY {
                return None;
            }
            if self.entries[index as usize].0 == lock {
                return Some(index as usize);
            }
            place = (place + 1) & mask;
        }
    }

    /// Where `lock` is, made if it was not there.
    pub(super) fn find_or(&mut self, lock: LockId, make: impl FnOnce() -> T) -> usize {
        if let Some(index) = self.find(lock) {
            return index;
        }
        let index = self.entries.len();
        assert!(index < EMPTY as usize);
        self.entries.push((lock, make()));
        if 2 * self.entries.len() > self.places.len() {
            self.places = vec![EMPTY; 2 * self.places.len()];
            for index in 0..self.entries.len() {
                self.place(index);
            }
        } else {
            self.place(index);
        }
        index
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn lock(&self, index: usize) -> LockId {
        self.entries[index].0
    }

    #[inline]
    pub(super) fn at(&self, index: usize) -> &T {
        &self.entries[index].1
    }

    #[inline]
    pub(super) fn at_mut(&mut self, index: usize) -> &mut T {
        &mut self.entries[index].1
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LockId, &T)> {
        self.entries.iter().map(|(lock, entry)| (*lock, entry))
    }

    /// The multiplication's upper bits: the lower ones would follow those of the id.
    #[inline]
    fn first(&self, lock: LockId) -> usize {
        let bits = self.places.len().trailing_zeros();
        (lock.0.wrapping_mul(SPREAD) >> (u32::BITS - bits)) as usize
    }

    fn place(&mut self, index: usize) {
        let mask = self.places.len() - 1;
        let mut place = self.first(self.entries[index].0);
        while self.places[place] != EMPTY {
            place = (place + 1) & mask;
        }
        self.places[place] = index as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_is_found_and_no_other() {
        let mut table = Table::new();
        let locks = (0..1000u32).map(|at| LockId(at.wrapping_mul(0x1000_0001)));
        for lock in locks.clone() {
            assert_eq!(table.find(lock), None);
            let index = table.find_or(lock, || lock.0);
            assert_eq!(table.find_or(lock, || 0), index);
        }
        for (index, lock) in locks.enumerate() {
            assert_eq!(table.find(lock), Some(index));
            assert_eq!((table.lock(index), *table.at(index)), (lock, lock.0));
        }
        assert_eq!(table.find(LockId(7)), None);
        assert_eq!(table.len(), 1000);
    }
}
