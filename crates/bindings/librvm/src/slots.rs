//! The table of objects that C has handles of: transactions, nodes, readers.
//!
//! A handle contains a slot's index and the number of times the slot was used, so a stale handle is refused
//! and never reaches another object. Slots are never freed or moved: finding one takes no other lock than its
//! own.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::lock;

/// Handle that C keeps: generation in the upper half, index + 1 in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObjectHandle(NonZeroU64);

/// Slots of the first block; each further block has twice as many as the previous one.
const FIRST_BLOCK: u32 = 64;
/// Number of blocks that together have a slot for every 32-bit index.
const BLOCKS: usize = 26;

struct Slot<T>(Mutex<HandleEntry<T>>);

struct HandleEntry<T> {
    generation: u32,
    value: Option<T>,
}

/// A table of values with handles.
pub(crate) struct ObjectTable<T> {
    blocks: [OnceLock<Box<[Slot<T>]>>; BLOCKS],
    /// Indexes of slots that were used and are free.
    free: Mutex<Vec<u32>>,
    /// Number of slots ever used; their indexes are below it.
    used: AtomicU32,
    open: AtomicUsize,
}

/// Whether a value remains after an attempt to end it.
pub(crate) enum CallEnd {
    Ended,
    StaysOpen,
}

impl ObjectHandle {
    fn new(index: u32, generation: u32) -> ObjectHandle {
        let bits = u64::from(generation) << 32 | (u64::from(index) + 1);
        ObjectHandle(NonZeroU64::new(bits).expect("the lower half is not zero"))
    }

    /// The handle as the pointer that C keeps.
    pub(crate) fn to_address(self) -> usize {
        self.0.get() as usize
    }

    /// The handle in a pointer from C, if it can be one.
    pub(crate) fn from_address(address: usize) -> Option<ObjectHandle> {
        let bits = NonZeroU64::new(address as u64)?;
        (bits.get() as u32 != 0).then_some(ObjectHandle(bits))
    }

    fn index(self) -> u32 {
        self.0.get() as u32 - 1
    }

    fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl<T> Slot<T> {
    fn empty() -> Slot<T> {
        let (generation, value) = (0, None);
        Slot(Mutex::new(HandleEntry { generation, value }))
    }
}

impl<T> ObjectTable<T> {
    pub(crate) const fn new() -> ObjectTable<T> {
        ObjectTable {
            blocks: [const { OnceLock::new() }; BLOCKS],
            free: Mutex::new(Vec::new()),
            used: AtomicU32::new(0),
            open: AtomicUsize::new(0),
        }
    }

    /// Number of values.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Adds a value.
    pub(crate) fn insert(&self, value: T) -> ObjectHandle {
        self.open.fetch_add(1, Ordering::SeqCst);
        let recycled = lock(&self.free).pop();
        let index = recycled.unwrap_or_else(|| self.used.fetch_add(1, Ordering::AcqRel));
        let mut slot = lock(&self.slot(index).0);
        slot.generation = slot.generation.wrapping_add(1);
        slot.value = Some(value);
        ObjectHandle::new(index, slot.generation)
    }

    /// Calls `act` with a value, for one thread at a time. Returns `None` if the handle is invalid or stale.
    #[inline]
    pub(crate) fn with<R>(&self, handle: ObjectHandle, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut slot = lock(&self.find(handle)?.0);
        let current = slot.generation == handle.generation();
        slot.value.as_mut().filter(|_| current).map(act)
    }

    /// Calls `act`, which may end a value, and frees its slot if it did.
    pub(crate) fn end<R>(
        &self,
        handle: ObjectHandle,
        act: impl FnOnce(&mut T) -> (R, CallEnd),
    ) -> Option<(R, CallEnd)> {
        let mut slot = lock(&self.find(handle)?.0);
        let current = slot.generation == handle.generation();
        let (result, ending) = act(slot.value.as_mut().filter(|_| current)?);
        if let CallEnd::StaysOpen = ending {
            return Some((result, ending));
        }
        slot.value = None;
        drop(slot);
        self.give_back(handle);
        Some((result, ending))
    }

    /// Removes a value.
    pub(crate) fn take(&self, handle: ObjectHandle) -> Option<T> {
        let mut slot = lock(&self.find(handle)?.0);
        let current = slot.generation == handle.generation();
        let value = slot.value.take_if(|_| current)?;
        drop(slot);
        self.give_back(handle);
        Some(value)
    }

    fn give_back(&self, handle: ObjectHandle) {
        lock(&self.free).push(handle.index());
        self.open.fetch_sub(1, Ordering::SeqCst);
    }

    /// Calls `look` with each value.
    pub(crate) fn each(&self, mut look: impl FnMut(ObjectHandle, &T)) {
        for index in 0..self.used.load(Ordering::Acquire) {
            let slot = lock(&self.slot(index).0);
            if let Some(value) = &slot.value {
                look(ObjectHandle::new(index, slot.generation), value);
            }
        }
    }

    fn find(&self, handle: ObjectHandle) -> Option<&Slot<T>> {
        let (block, within) = split(handle.index());
        self.blocks.get(block)?.get()?.get(within)
    }

    /// The slot with an index, whose block is allocated if it is the first.
    fn slot(&self, index: u32) -> &Slot<T> {
        let (block, within) = split(index);
        let slots = self.blocks[block].get_or_init(|| {
            let count = (FIRST_BLOCK as usize) << block;
            std::iter::repeat_with(Slot::empty).take(count).collect()
        });
        &slots[within]
    }
}

/// The block of an index, and the position in it.
fn split(index: u32) -> (usize, usize) {
    let shifted = u64::from(index) + u64::from(FIRST_BLOCK);
    let block = shifted.ilog2() - FIRST_BLOCK.ilog2();
    let first = u64::from(FIRST_BLOCK) << block;
    (block as usize, (shifted - first) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_fill_blocks_without_gaps() {
        assert_eq!(split(0), (0, 0));
        assert_eq!(split(63), (0, 63));
        assert_eq!(split(64), (1, 0));
        assert_eq!(split(191), (1, 127));
        assert_eq!(split(192), (2, 0));
        assert_eq!(split(u32::MAX - FIRST_BLOCK).0, BLOCKS - 1);
    }

    #[test]
    fn arbitrary_addresses_are_not_handles() {
        let table: ObjectTable<u8> = ObjectTable::new();
        assert_eq!(ObjectHandle::from_address(0), None);
        assert_eq!(ObjectHandle::from_address(1 << 32), None);
        for address in [1, 0xdead_beef, usize::MAX, 1 << 33 | 5] {
            let handle = ObjectHandle::from_address(address).expect("the lower half is not zero");
            assert_eq!(table.with(handle, |value| *value), None);
        }
    }

    #[test]
    fn a_stale_handle_never_reaches_another_value() {
        let table: ObjectTable<u8> = ObjectTable::new();
        let first = table.insert(1);
        assert_eq!(table.take(first), Some(1));
        let second = table.insert(2);
        assert_eq!(first.index(), second.index());
        assert_eq!(table.with(first, |value| *value), None);
        assert_eq!(table.take(first), None);
        assert!(table.end(first, |_| ((), CallEnd::Ended)).is_none());
        assert_eq!(table.with(second, |value| *value), Some(2));
        assert_eq!(table.open(), 1);
    }
}
