//! The ranges of a large transaction as bits: one for every four bytes, with the bits of a page in two cache
//! lines.
//!
//! A list of ranges must be sorted and grows with every repetition; bits cost the same for the millionth
//! update as for the first. Bits hold whole granules only: nothing is rounded, and ranges that do not begin
//! and end at a multiple of four stay in the list. With granules of eight bytes, a structure of 4-byte fields
//! would stay in the list altogether.

use crate::range::DeclaredRange;

/// Bytes per bit.
const GRANULE_BYTES: u64 = 4;
/// Bytes per entry; independent of the system's page size.
const PAGE_BYTES: u64 = 4096;
const WORDS: usize = (PAGE_BYTES / GRANULE_BYTES / 64) as usize;
/// Pages with bits in one transaction; they take 128 MiB. Ranges in other pages stay in the list.
const PAGES_MAX: usize = 1 << 20;
/// Longer ranges are few, and stay in the list.
const RANGE_BYTES_MAX: u32 = PAGE_BYTES as u32;
/// Bits of a key for the page: an offset of 60 bits, more than an address space has.
const PAGE_BITS: u32 = 48;
const NO_KEY: u64 = u64::MAX;
/// Table entry without a page.
const FREE: u32 = u32::MAX;

const _: () = assert!(
    crate::limit::TRANSACTION_REGIONS_MAX < 1 << (u64::BITS - PAGE_BITS),
    "a key holds every region, and is never NO_KEY"
);
const _: () = assert!(PAGES_MAX < FREE as usize);

type Bits = [u64; WORDS];

/// The declared granules. Keeps its memory when cleared.
#[derive(Debug)]
pub(crate) struct Granules {
    /// Indexes into `pages`, found by hashing. Its length is a power of two, and at most half is used.
    table: Vec<u32>,
    /// The pages have been sorted, so their indexes have changed.
    stale: bool,
    pages: Vec<Page>,
    /// The page used last, with its index; updates are often clustered.
    recent: (u64, usize),
}

/// The declared granules of one page.
#[derive(Clone, Copy, Debug)]
struct Page {
    /// Combination of the region and the page's number in it.
    key: u64,
    bits: Bits,
}

impl Default for Granules {
    fn default() -> Granules {
        Granules {
            table: Vec::new(),
            stale: false,
            pages: Vec::new(),
            recent: (NO_KEY, 0),
        }
    }
}

/// Whether bits can represent the range exactly.
#[inline]
pub(crate) fn fits(offset: u64, length: u32) -> bool {
    (offset | u64::from(length)).is_multiple_of(GRANULE_BYTES) && length <= RANGE_BYTES_MAX
}

impl Granules {
    /// Number of pages with bits.
    pub(crate) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Declares a range that [`fits`]. Returns, as offset and length, its part from the first to the last new
    /// granule. Returns `None` if there is no room for another page.
    #[inline]
    pub(crate) fn declare(&mut self, region: u32, offset: u64, length: u32) -> Option<(u64, u32)> {
        let key = key(region, offset);
        let first = offset % PAGE_BYTES / GRANULE_BYTES;
        let count = length / GRANULE_BYTES as u32;
        if self.recent.0 == key && (1..=64 - first as u32 % 64).contains(&count) {
            let word = &mut self.pages[self.recent.1].bits[first as usize / 64];
            let mask = (u64::MAX >> (64 - count)) << (first % 64);
            let new = mask & !*word;
            if new == mask {
                *word |= mask;
                return Some((offset, length));
            }
            if new == 0 {
                return Some((offset, 0));
            }
        }
        self.declare_any(region, offset, length)
    }

    /// Declares a range that [`fits`], if it lies in one word of the page used last. Returns `false`
    /// otherwise.
    #[inline]
    pub(crate) fn mark(&mut self, region: u32, offset: u64, length: u32) -> bool {
        let first = offset % PAGE_BYTES / GRANULE_BYTES;
        let count = length / GRANULE_BYTES as u32;
        let near = self.recent.0 == key(region, offset) && (1..=64 - first as u32 % 64).contains(&count);
        if near {
            let mask = (u64::MAX >> (64 - count)) << (first % 64);
            self.pages[self.recent.1].bits[first as usize / 64] |= mask;
        }
        near
    }

    fn declare_any(&mut self, region: u32, offset: u64, length: u32) -> Option<(u64, u32)> {
        let end = offset + u64::from(length);
        // A range no longer than a page touches two at most. Both are entered before either is changed.
        let low = self.slot_of(key(region, offset))?;
        let high = self.slot_of(key(region, end - GRANULE_BYTES))?;
        let (mut first, mut last) = (end, offset);
        let mut at = offset;
        while at < end {
            let index = if at / PAGE_BYTES == offset / PAGE_BYTES {
                low
            } else {
                high
            };
            let granule = at % PAGE_BYTES / GRANULE_BYTES;
            let count = (64 - granule % 64).min((end - at) / GRANULE_BYTES);
            let mask = (u64::MAX >> (64 - count)) << (granule % 64);
            let word = &mut self.pages[index].bits[granule as usize / 64];
            let new = mask & !*word;
            *word |= mask;
            if new != 0 {
                let word_at = at - granule % 64 * GRANULE_BYTES;
                first = first.min(word_at + u64::from(new.trailing_zeros()) * GRANULE_BYTES);
                last = word_at + u64::from(64 - new.leading_zeros()) * GRANULE_BYTES;
            }
            at += count * GRANULE_BYTES;
        }
        // The part is no longer than the range.
        Some(match first < last {
            true => (first, (last - first) as u32),
            false => (offset, 0),
        })
    }

    /// The index of a page, which is entered now if it is new.
    fn slot_of(&mut self, key: u64) -> Option<usize> {
        if self.recent.0 == key {
            return Some(self.recent.1);
        }
        if self.stale || self.pages.len() * 2 >= self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let mut slot = hash(key) & mask;
        let index = loop {
            match self.table[slot] {
                FREE if self.pages.len() >= PAGES_MAX => return None,
                FREE => {
                    self.table[slot] = self.pages.len() as u32;
                    self.pages.push(Page {
                        key,
                        bits: [0; WORDS],
                    });
                    break self.pages.len() - 1;
                }
                index if self.pages[index as usize].key == key => break index as usize,
                _ => slot = (slot + 1) & mask,
            }
        };
        self.recent = (key, index);
        Some(index)
    }

    fn grow(&mut self) {
        let size = (self.pages.len() * 4).next_power_of_two().max(256);
        self.stale = false;
        self.table.clear();
        self.table.resize(size, FREE);
        for (index, page) in self.pages.iter().enumerate() {
            let mut slot = hash(page.key) & (size - 1);
            while self.table[slot] != FREE {
                slot = (slot + 1) & (size - 1);
            }
            self.table[slot] = index as u32;
        }
    }

    /// Writes the declared ranges to `ranges`, sorted by position and with neighbours merged. This sorts the
    /// pages. If the commit is refused and the transaction stays open, the next declaration rebuilds the
    /// table.
    pub(crate) fn collect(&mut self, ranges: &mut Vec<DeclaredRange>) {
        self.stale = true;
        self.recent = (NO_KEY, 0);
        self.pages.sort_unstable_by_key(|page| page.key);
        for page in &self.pages {
            let region = (page.key >> PAGE_BITS) as u32;
            let base = (page.key & ((1 << PAGE_BITS) - 1)) * PAGE_BYTES;
            collect_page(region, base, &page.bits, ranges);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.table.fill(FREE);
        self.stale = false;
        self.pages.clear();
        self.recent = (NO_KEY, 0);
    }

    /// Bytes of memory that stay allocated.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.table.capacity() * size_of::<u32>() + self.pages.capacity() * size_of::<Page>()
    }
}

fn key(region: u32, offset: u64) -> u64 {
    (u64::from(region) << PAGE_BITS) | (offset / PAGE_BYTES)
}

/// Hash that puts neighbouring pages far apart, by the bits of the golden ratio.
fn hash(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

/// Adds the runs of set bits of one page, extending the last range where they continue it.
fn collect_page(region: u32, base: u64, bits: &Bits, ranges: &mut Vec<DeclaredRange>) {
    for (index, word) in bits.iter().enumerate() {
        let mut left = *word;
        while left != 0 {
            let skip = left.trailing_zeros();
            let run = (left >> skip).trailing_ones();
            left &= !((u64::MAX >> (64 - run)) << skip);
            let offset = base + (index as u64 * 64 + u64::from(skip)) * GRANULE_BYTES;
            let length = run * GRANULE_BYTES as u32;
            if let Some(last) = ranges.last_mut()
                && last.region == region
                && last.end() == offset
                && let Some(whole) = last.length.checked_add(length)
            {
                last.length = whole;
            } else {
                ranges.push(DeclaredRange {
                    offset,
                    length,
                    region,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Clustered ranges, so that they touch, over several pages and regions.
    fn declared() -> impl Strategy<Value = Vec<(u32, u64, u32)>> {
        let granule = prop_oneof![0u64..40, 500u64..530, 1000u64..3000];
        let length = prop_oneof![1u32..4, 60u32..70, 1000u32..1025];
        proptest::collection::vec((0u32..3, granule, length), 0..60).prop_map(|ranges| {
            let bytes = |(region, granule, length)| (region, granule * 4, length * 4);
            ranges.into_iter().map(bytes).collect()
        })
    }

    proptest! {
        #[test]
        fn bits_hold_exactly_the_granules_that_were_declared(declared in declared()) {
            let mut granules = Granules::default();
            let mut model = BTreeSet::new();
            for (region, offset, length) in &declared {
                prop_assert!(fits(*offset, *length));
                let places = (*offset..*offset + u64::from(*length)).step_by(4);
                let new: Vec<u64> = places.filter(|at| model.insert((*region, *at))).collect();
                let (fresh, count) = granules.declare(*region, *offset, *length).unwrap();
                match (new.first(), new.last()) {
                    (Some(first), Some(last)) => {
                        prop_assert_eq!((fresh, u64::from(count)), (*first, last + 4 - first));
                    }
                    _ => prop_assert_eq!(count, 0),
                }
            }
            for round in 0..2 {
                let mut ranges = Vec::new();
                granules.collect(&mut ranges);
                let covered: Vec<(u32, u64)> = ranges
                    .iter()
                    .flat_map(|range| (range.offset..range.end()).step_by(4).map(|at| (range.region, at)))
                    .collect();
                prop_assert!(covered.iter().eq(model.iter()), "sorted, each granule once, round {}", round);
                // A transaction that stays open after a refused commit declares more.
                granules.declare(1, 1 << 30, 4).unwrap();
                model.insert((1, 1 << 30));
            }
            granules.clear();
            prop_assert_eq!(granules.pages(), 0);
        }
    }

    #[test]
    fn a_range_that_is_not_whole_granules_does_not_fit() {
        assert!(fits(8, 8) && fits(4, 8) && fits(8, 4));
        assert!(!fits(2, 8));
        assert!(!fits(8, 2));
        assert!(!fits(0, RANGE_BYTES_MAX + 4));
    }
}
