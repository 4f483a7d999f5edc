//! SORT: large records, sorted in place by the quicksort of C libraries of the time (Bentley and McIlroy,
//! *Engineering a sort function*, 1993): the median of three or of nine, equal keys to both ends, records
//! exchanged byte by byte.

use super::ReferenceSink;

use std::cmp::Ordering;

/// Bytes of a key, at the beginning of its record.
const KEY: u32 = 4;
/// Fewer records than this are sorted by insertion.
const INSERTION_MAX: usize = 7;
/// More records than this take the median of nine as pivot.
const NINTHER_MIN: usize = 40;

/// Records that can be compared and exchanged by index.
pub trait Sortable {
    /// Compares two keys.
    fn compare(&mut self, one: usize, other: usize) -> Ordering;
    /// Exchanges two records.
    fn exchange(&mut self, one: usize, other: usize);
}

/// The paper's records, which have addresses and report references.
struct Records<'m, M> {
    memory: &'m mut M,
    base: u64,
    bytes: u64,
    keys: Vec<u32>,
}

/// Sorts `records` records of `bytes` bytes with pseudo-random keys. Returns the keys in order.
pub fn sort(memory: &mut impl ReferenceSink, base: u64, records: usize, bytes: u64) -> Vec<u32> {
    let mut state = 1_u64;
    let mut key = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let keys = (0..records).map(|_| key()).collect();
    let mut sorted = Records {
        memory,
        base,
        bytes,
        keys,
    };
    quicksort(&mut sorted, records);
    sorted.keys
}

impl<M: ReferenceSink> Sortable for Records<'_, M> {
    fn compare(&mut self, one: usize, other: usize) -> Ordering {
        for place in [one, other] {
            self.memory.read(self.base + place as u64 * self.bytes, KEY);
        }
        self.keys[one].cmp(&self.keys[other])
    }

    /// Exchanges byte by byte, as the library does for records that are not known to consist of words.
    fn exchange(&mut self, one: usize, other: usize) {
        let (left, right) = (
            self.base + one as u64 * self.bytes,
            self.base + other as u64 * self.bytes,
        );
        for byte in 0..self.bytes {
            self.memory.read(left + byte, 1);
            self.memory.read(right + byte, 1);
            self.memory.write(left + byte, 1);
            self.memory.write(right + byte, 1);
        }
        self.keys.swap(one, other);
    }
}

/// Sorts `count` records.
pub fn quicksort(records: &mut impl Sortable, count: usize) {
    sort_part(records, 0, count);
}

fn exchange_rows(records: &mut impl Sortable, one: usize, other: usize, count: usize) {
    for place in 0..count {
        records.exchange(one + place, other + place);
    }
}

fn median(records: &mut impl Sortable, [low, middle, high]: [usize; 3]) -> usize {
    let rises = records.compare(low, middle).is_lt();
    if rises == records.compare(middle, high).is_lt() {
        return middle;
    }
    match rises == records.compare(low, high).is_lt() {
        true => high,
        false => low,
    }
}

fn pivot(records: &mut impl Sortable, start: usize, count: usize) -> usize {
    let (mut low, mut middle, mut high) = (start, start + count / 2, start + count - 1);
    if count <= INSERTION_MAX {
        return middle;
    }
    if count > NINTHER_MIN {
        let step = count / 8;
        low = median(records, [low, low + step, low + 2 * step]);
        middle = median(records, [middle - step, middle, middle + step]);
        high = median(records, [high - 2 * step, high - step, high]);
    }
    median(records, [low, middle, high])
}

fn insert(records: &mut impl Sortable, start: usize, end: usize) {
    for next in start + 1..end {
        let mut place = next;
        while place > start && records.compare(place - 1, place).is_gt() {
            records.exchange(place, place - 1);
            place -= 1;
        }
    }
}

fn sort_part(records: &mut impl Sortable, start: usize, end: usize) {
    let count = end - start;
    if count < INSERTION_MAX {
        return insert(records, start, end);
    }
    let pivot = pivot(records, start, count);
    records.exchange(start, pivot);
    // Equal ones gather at both ends: below `equal_low`, and above `equal_high`.
    let (mut equal_low, mut low) = (start + 1, start + 1);
    let (mut high, mut equal_high) = (end - 1, end - 1);
    loop {
        while low <= high {
            match records.compare(low, start) {
                Ordering::Less => {}
                Ordering::Equal => {
                    records.exchange(equal_low, low);
                    equal_low += 1;
                }
                Ordering::Greater => break,
            }
            low += 1;
        }
        while low <= high {
            match records.compare(high, start) {
                Ordering::Less => break,
                Ordering::Equal => {
                    records.exchange(high, equal_high);
                    equal_high -= 1;
                }
                Ordering::Greater => {}
            }
            high -= 1;
        }
        if low > high {
            break;
        }
        records.exchange(low, high);
        low += 1;
        high -= 1;
    }
    let moved = (equal_low - start).min(low - equal_low);
    exchange_rows(records, start, low - moved, moved);
    let moved = (equal_high - high).min(end - 1 - equal_high);
    exchange_rows(records, low, end - moved, moved);
    sort_part(records, start, start + (low - equal_low));
    sort_part(records, end - (equal_high - high), end);
}

#[cfg(test)]
mod tests {
    use super::super::NullSink;
    use super::*;

    #[test]
    fn keys_come_out_in_order() {
        for records in [0, 1, 2, 6, 7, 8, 39, 41, 1400] {
            let keys = sort(&mut NullSink, 0, records, 4);
            assert_eq!(keys.len(), records);
            assert!(keys.is_sorted());
        }
    }

    #[test]
    fn equal_keys_are_sorted_too() {
        let mut state = 5_u32;
        let mut key = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 30
        };
        let mut records = Records {
            memory: &mut NullSink,
            base: 0,
            bytes: 4,
            keys: (0..500).map(|_| key()).collect(),
        };
        quicksort(&mut records, 500);
        assert!(records.keys.is_sorted());
    }
}
