//! Allocations of less than a few pages, many in one run of pages: a *slab* has slots of one size. A value:
//! runs come from [`PageRuns`](crate::page_runs::PageRuns), and go back to it.
//!
//! Which slots are taken is known outside of the arena, so that neither taking nor giving one brings a page.
//! What a slot has when it is taken is what its last holder left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use netram_far_machine::limit::PAGE_BYTES;

/// Pages of a slab. What nobody has used of them costs nothing.
pub(crate) const SLAB_PAGES: u32 = 64;
const SLAB_BYTES: usize = SLAB_PAGES as usize * PAGE_BYTES;
/// The smallest slot.
const SLOT_BYTES_MIN: usize = 1 << SMALLEST;
const SMALLEST: u32 = 10;
/// Larger allocations have pages of their own: a last one that is half empty is little beside the others.
const SLOT_BYTES_MAX: usize = 1 << LARGEST;
const LARGEST: u32 = 15;
/// Sizes between one power of two and the next: no more than an eighth of a slot is unused.
const STEPS: usize = 8;
/// Every slot's size is a multiple of this, and so is where it begins.
pub(crate) const SLOT_ALIGN: usize = SLOT_BYTES_MIN / STEPS;
const WORD: usize = u64::BITS as usize;

const _: () = assert!(SLOT_BYTES_MAX * STEPS <= SLAB_BYTES, "a slab has many slots");

/// A slot's size, as one of few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabClass(usize);

impl SlabClass {
    /// The smallest that has so many bytes. `None`: they get pages of their own.
    pub(crate) fn of(bytes: usize) -> Option<SlabClass> {
        let bytes = bytes.max(SLOT_BYTES_MIN);
        if bytes > SLOT_BYTES_MAX {
            return None;
        }
        let power = (bytes - 1).ilog2().max(SMALLEST);
        let step = (1 << power) / STEPS;
        let steps = (bytes - (1 << power)).div_ceil(step).min(STEPS);
        match bytes {
            SLOT_BYTES_MIN => Some(SlabClass(0)),
            _ => Some(SlabClass((power - SMALLEST) as usize * STEPS + steps)),
        }
    }

    /// Bytes of a slot.
    pub(crate) fn bytes(self) -> usize {
        let power = SMALLEST + (self.0 / STEPS) as u32;
        (1 << power) + (1 << power) / STEPS * (self.0 % STEPS)
    }

    fn slots(self) -> usize {
        SLAB_BYTES / self.bytes()
    }
}

#[derive(Debug)]
struct Slab {
    class: SlabClass,
    count: usize,
    /// A bit a slot.
    taken: Vec<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct SlabTable {
    /// By their first byte.
    slabs: BTreeMap<usize, Slab>,
    /// Those that have a free slot, by class.
    open: BTreeMap<usize, BTreeSet<usize>>,
}

impl SlabTable {
    /// A free slot, at the lowest address. `None`: this class needs another slab.
    pub(crate) fn take(&mut self, class: SlabClass) -> Option<usize> {
        let open = self.open.get_mut(&class.0)?;
        let start = *open.first()?;
        let slab = self.slabs.get_mut(&start).expect("what is open is a slab");
        let free = slab.taken.iter().position(|word| *word != u64::MAX);
        let index = free.expect("an open slab has a free slot");
        let bit = slab.taken[index].trailing_ones() as usize;
        slab.taken[index] |= 1 << bit;
        slab.count += 1;
        if slab.count == class.slots() {
            open.remove(&start);
        }
        Some(start + (index * WORD + bit) * class.bytes())
    }

    /// A run of [`SLAB_PAGES`] becomes a slab.
    pub(crate) fn add(&mut self, class: SlabClass, start: usize) {
        let slots = class.slots();
        let mut taken = vec![0; slots.div_ceil(WORD)];
        // What is beyond the last slot is nobody's.
        if let Some(last) = taken.last_mut()
            && !slots.is_multiple_of(WORD)
        {
            *last = u64::MAX << (slots % WORD);
        }
        let slab = Slab {
            class,
            count: 0,
            taken,
        };
        self.slabs.insert(start, slab);
        self.open.entry(class.0).or_default().insert(start);
    }

    /// Whether this address is in a slab.
    pub(crate) fn has(&self, address: usize) -> bool {
        self.at(address).is_some()
    }

    /// The size of the slot that begins here. `None`: none that is taken does.
    pub(crate) fn bytes(&self, address: usize) -> Option<usize> {
        let (start, slab) = self.at(address)?;
        let (index, within) = (
            (address - start) / slab.class.bytes(),
            (address - start) % slab.class.bytes(),
        );
        let taken = index < slab.class.slots() && slab.taken[index / WORD] >> (index % WORD) & 1 == 1;
        (within == 0 && taken).then(|| slab.class.bytes())
    }

    /// Takes a slot back that [`SlabTable::bytes`] knows. The addresses of its slab, if that is none any
    /// more: its last slot was given back, and its class has another one with room.
    pub(crate) fn give(&mut self, address: usize) -> Option<Range<usize>> {
        let (start, _) = self.at(address)?;
        let slab = self.slabs.get_mut(&start)?;
        let index = (address - start) / slab.class.bytes();
        slab.taken[index / WORD] &= !(1 << (index % WORD));
        slab.count -= 1;
        let open = self.open.entry(slab.class.0).or_default();
        open.insert(start);
        if slab.count > 0 || open.len() == 1 {
            return None;
        }
        open.remove(&start);
        self.slabs.remove(&start);
        Some(start..start + SLAB_BYTES)
    }

    fn at(&self, address: usize) -> Option<(usize, &Slab)> {
        let (start, slab) = self.slabs.range(..=address).next_back()?;
        (address - start < SLAB_BYTES).then_some((*start, slab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_what_is_asked_for_and_little_more() {
        assert_eq!(SlabClass::of(1).unwrap().bytes(), SLOT_BYTES_MIN);
        for bytes in SLOT_BYTES_MIN..=SLOT_BYTES_MAX {
            let class = SlabClass::of(bytes).unwrap();
            let slot = class.bytes();
            assert!(
                slot >= bytes && slot - bytes <= bytes / STEPS,
                "{bytes} in {slot}"
            );
            assert_eq!(slot % SLOT_ALIGN, 0);
            assert_eq!(SlabClass::of(slot), Some(class));
        }
        assert_eq!(SlabClass::of(SLOT_BYTES_MAX + 1), None);
    }

    #[test]
    fn slots_are_apart_inside_and_known_by_where_they_begin() {
        let mut slabs = SlabTable::default();
        let class = SlabClass::of(5000).unwrap();
        assert_eq!(slabs.take(class), None);
        slabs.add(class, 0x10_0000);
        let mut slots: Vec<usize> = std::iter::from_fn(|| slabs.take(class)).collect();
        assert_eq!(slots.len(), SLAB_BYTES / class.bytes());
        slots.sort_unstable();
        assert!(slots.windows(2).all(|pair| pair[1] - pair[0] >= class.bytes()));
        assert!(slots[slots.len() - 1] + class.bytes() <= 0x10_0000 + SLAB_BYTES);
        assert_eq!(slabs.bytes(slots[3]), Some(class.bytes()));
        assert_eq!(slabs.bytes(slots[3] + 8), None);
        assert!(slabs.has(slots[3] + 8) && !slabs.has(0x10_0000 + SLAB_BYTES) && !slabs.has(0));
        assert_eq!(slabs.give(slots[3]), None);
        assert_eq!(slabs.bytes(slots[3]), None, "given back");
        assert_eq!(slabs.take(class), Some(slots[3]));
    }

    #[test]
    fn an_empty_slab_goes_when_its_class_has_another() {
        let mut slabs = SlabTable::default();
        let class = SlabClass::of(20_000).unwrap();
        slabs.add(class, 0);
        let first: Vec<usize> = std::iter::from_fn(|| slabs.take(class)).collect();
        slabs.add(class, SLAB_BYTES);
        let second = slabs.take(class).unwrap();
        assert_eq!(slabs.give(second), None, "one with room is kept");
        let gone: Vec<_> = first.iter().filter_map(|slot| slabs.give(*slot)).collect();
        assert_eq!((gone.len(), gone.first()), (1, Some(&(0..SLAB_BYTES))));
        assert_eq!(slabs.take(class), Some(SLAB_BYTES));
    }
}
