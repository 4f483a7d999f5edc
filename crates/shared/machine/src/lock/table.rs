//! Table with an entry per lock, found in a few nanoseconds: the locks in the order of their insertion, and
//! an open-addressing index.
//!
//! No entry is ever removed: a region has a bounded number of locks.

use alloc::vec;
use alloc::vec::Vec;

use crate::LockId;

const EMPTY: u32 = u32::MAX;
/// Prime near 2^32 divided by the golden ratio: neighbouring ids fall far apart.
const HASH_MULTIPLIER: u32 = 2_654_435_769;
const BUCKETS_MIN: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockTable<T> {
    entries: Vec<(LockId, T)>,
    /// Indexes into `entries`; their number is a power of two, at most half of them in use.
    buckets: Vec<u32>,
}

impl<T> LockTable<T> {
    pub(super) fn new() -> LockTable<T> {
        LockTable {
            entries: Vec::new(),
            buckets: vec![EMPTY; BUCKETS_MIN],
        }
    }

    /// Index of `lock`.
    #[inline]
    pub(super) fn find(&self, lock: LockId) -> Option<usize> {
        let mask = self.buckets.len() - 1;
        let mut place = self.first(lock);
        loop {
            let index = self.buckets[place];
            if index == EMPTY {
                return None;
            }
            if self.entries[index as usize].0 == lock {
                return Some(index as usize);
            }
            place = (place + 1) & mask;
        }
    }

    /// Index of `lock`, which is added if it is missing.
    pub(super) fn find_or(&mut self, lock: LockId, make: impl FnOnce() -> T) -> usize {
        if let Some(index) = self.find(lock) {
            return index;
        }
        let index = self.entries.len();
        assert!(index < EMPTY as usize);
        self.entries.push((lock, make()));
        if 2 * self.entries.len() > self.buckets.len() {
            self.buckets = vec![EMPTY; 2 * self.buckets.len()];
            for index in 0..self.entries.len() {
                self.insert_bucket(index);
            }
        } else {
            self.insert_bucket(index);
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

    /// First bucket to try. It uses the multiplication's upper bits: the lower ones would follow those of the
    /// id.
    #[inline]
    fn first(&self, lock: LockId) -> usize {
        let bits = self.buckets.len().trailing_zeros();
        (lock.0.wrapping_mul(HASH_MULTIPLIER) >> (u32::BITS - bits)) as usize
    }

    fn insert_bucket(&mut self, index: usize) {
        let mask = self.buckets.len() - 1;
        let mut place = self.first(self.entries[index].0);
        while self.buckets[place] != EMPTY {
            place = (place + 1) & mask;
        }
        self.buckets[place] = index as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_is_found_and_no_other() {
        let mut table = LockTable::new();
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
