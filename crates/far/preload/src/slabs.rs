//! Small allocations, many in one run of pages: a *slab* has slots of one size. A value; its runs come from
//! [`PageRuns`](crate::page_runs::PageRuns) and return there.
//!
//! Records of the slots are outside of the arena, so that neither allocating nor freeing touches a page of
//! it. A slot keeps the content of its last owner.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use netram_far_machine::limit::PAGE_BYTES;

/// Number of pages of a slab. Unused ones cost nothing.
pub(crate) const SLAB_PAGES: u32 = 64;
const SLAB_BYTES: usize = SLAB_PAGES as usize * PAGE_BYTES;
/// Smallest slot in bytes.
const SLOT_BYTES_MIN: usize = 1 << SMALLEST;
const SMALLEST: u32 = 10;
/// Largest slot in bytes. Larger allocations get pages of their own, whose partly used last page is
/// comparatively small.
const SLOT_BYTES_MAX: usize = 1 << LARGEST;
const LARGEST: u32 = 15;
/// Number of slot sizes per power of two: at most an eighth of a slot is unused.
const STEPS: usize = 8;
/// Alignment of every slot's size and address.
pub(crate) const SLOT_ALIGN: usize = SLOT_BYTES_MIN / STEPS;
const WORD: usize = u64::BITS as usize;

const _: () = assert!(SLOT_BYTES_MAX * STEPS <= SLAB_BYTES, "a slab has many slots");

/// One of the slot sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabClass(usize);

impl SlabClass {
    /// The smallest class with at least `bytes` bytes. `None`: larger than any slot.
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
    /// One bit per slot: allocated.
    taken: Vec<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct SlabTable {
    /// Slabs by address.
    slabs: BTreeMap<usize, Slab>,
    /// Slabs with a free slot, by class.
    open: BTreeMap<usize, BTreeSet<usize>>,
}

impl SlabTable {
    /// Allocates the free slot at the lowest address. `None`: this class needs another slab.
    pub(crate) fn take(&mut self, class: SlabClass) -> Option<usize> {
        let open = self.open.get_mut(&class.0)?;
        let start = *open.first()?;
        let slab = self.slabs.get_mut(&start).expect("an open slab is in the table");
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

    /// Turns a run of [`SLAB_PAGES`] into a slab.
    pub(crate) fn add(&mut self, class: SlabClass, start: usize) {
        let slots = class.slots();
        let mut taken = vec![0; slots.div_ceil(WORD)];
        // Bits after the last slot count as allocated.
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

    /// Size of the allocated slot that begins here. `None`: there is none.
    pub(crate) fn bytes(&self, address: usize) -> Option<usize> {
        let (start, slab) = self.at(address)?;
        let (index, within) = (
            (address - start) / slab.class.bytes(),
            (address - start) % slab.class.bytes(),
        );
        let taken = index < slab.class.slots() && slab.taken[index / WORD] >> (index % WORD) & 1 == 1;
        (within == 0 && taken).then(|| slab.class.bytes())
    }

    /// Frees an allocated slot. Returns the range of its slab if that is dissolved: it is empty, and its
    /// class has another one with room.
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
    fn a_class_wastes_at_most_an_eighth() {
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
    fn slots_do_not_overlap_and_are_found_by_address() {
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
    fn an_empty_slab_is_dissolved_if_its_class_has_another() {
        let mut slabs = SlabTable::default();
        let class = SlabClass::of(20_000).unwrap();
        slabs.add(class, 0);
        let first: Vec<usize> = std::iter::from_fn(|| slabs.take(class)).collect();
        slabs.add(class, SLAB_BYTES);
        let second = slabs.take(class).unwrap();
        assert_eq!(slabs.give(second), None, "one slab with room is kept");
        let gone: Vec<_> = first.iter().filter_map(|slot| slabs.give(*slot)).collect();
        assert_eq!((gone.len(), gone.first()), (1, Some(&(0..SLAB_BYTES))));
        assert_eq!(slabs.take(class), Some(SLAB_BYTES));
    }
}
