//! Parts of an arena's memory, each its holder's alone.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use netram_far_machine::limit::PAGE_BYTES;

use super::MappedMemory;

/// What may be kept in an arena: any bytes are a value, zeros too, and it has no padding.
///
/// Every type for which `zerocopy` proves so is one.
pub trait Pod: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy {}
impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy> Pod for T {}

/// The parts of a memory that nobody holds: first page and pages, none next to another.
#[derive(Debug)]
pub(crate) struct AreaAllocator {
    memory: Arc<MappedMemory>,
    free: Mutex<BTreeMap<usize, usize>>,
}

/// Whole pages of a memory that belong to this alone.
#[derive(Debug)]
pub(crate) struct ArenaArea {
    areas: Arc<AreaAllocator>,
    pages: Range<usize>,
}

impl AreaAllocator {
    pub(crate) fn new(memory: Arc<MappedMemory>) -> Arc<AreaAllocator> {
        let pages = memory.bytes() / PAGE_BYTES;
        Arc::new(AreaAllocator {
            memory,
            free: Mutex::new(BTreeMap::from([(0, pages)])),
        })
    }

    /// The first part of so many pages that is free. `None`: there is none.
    pub(crate) fn take(self: &Arc<Self>, pages: usize) -> Option<ArenaArea> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, length) = free
            .iter()
            .map(|(first, length)| (*first, *length))
            .find(|part| part.1 >= pages)?;
        free.remove(&first);
        if length > pages {
            free.insert(first + pages, length - pages);
        }
        self.memory.dump(first, pages, true);
        Some(ArenaArea {
            areas: Arc::clone(self),
            pages: first..first + pages,
        })
    }

    fn give(&self, pages: &Range<usize>) {
        self.memory.dump(pages.start, pages.len(), false);
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut first, mut length) = (pages.start, pages.len());
        length += free.remove(&pages.end).unwrap_or(0);
        if let Some((before, pages)) = free
            .range(..first)
            .next_back()
            .map(|(before, pages)| (*before, *pages))
            && before + pages == first
        {
            free.remove(&before);
            (first, length) = (before, length + pages);
        }
        free.insert(first, length);
    }
}

impl ArenaArea {
    /// Its pages, as the memory counts them.
    pub(crate) fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// Whether a core dump has this part of it, counted from its first page; it has all of it if nothing is
    /// said.
    pub(crate) fn dump(&self, pages: Range<usize>, wanted: bool) {
        assert!(pages.end <= self.pages.len(), "pages of the area");
        self.areas
            .memory
            .dump(self.pages.start + pages.start, pages.len(), wanted);
    }

    /// Its first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.areas.memory.at(self.pages.start * PAGE_BYTES).cast()
    }

    /// Bytes from its beginning, as values.
    pub(crate) fn slice<T: Pod>(&self, count: usize) -> &[T] {
        let at = self.check::<T>(count);
        // SAFETY: so many values lie inside the area, aligned as a page is; any bytes are values (`Pod`);
        // only `&mut self` writes them.
        unsafe { std::slice::from_raw_parts(at, count) }
    }

    /// The same, to be written.
    pub(crate) fn slice_mut<T: Pod>(&mut self, count: usize) -> &mut [T] {
        let at = self.check::<T>(count);
        // SAFETY: as above; and no two areas share a page (`AreaAllocator::take`), so that `&mut self` is the
        // only way to them.
        unsafe { std::slice::from_raw_parts_mut(at.cast_mut(), count) }
    }

    fn check<T>(&self, count: usize) -> *const T {
        let bytes = count
            .checked_mul(size_of::<T>())
            .expect("the area is no longer than memory");
        assert!(
            bytes <= self.pages.len() * PAGE_BYTES,
            "the values are inside the area"
        );
        assert!(align_of::<T>() <= PAGE_BYTES, "an area begins with a page");
        self.areas
            .memory
            .at(self.pages.start * PAGE_BYTES)
            .cast_const()
            .cast()
    }
}

impl Drop for ArenaArea {
    fn drop(&mut self) {
        self.areas.give(&self.pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_apart_and_what_is_given_back_is_whole_again() {
        let areas = AreaAllocator::new(Arc::new(MappedMemory::map(100).unwrap()));
        let (first, second, third) = (
            areas.take(30).unwrap(),
            areas.take(30).unwrap(),
            areas.take(40).unwrap(),
        );
        assert_eq!(
            (first.pages(), second.pages(), third.pages()),
            (0..30, 30..60, 60..100)
        );
        assert!(areas.take(1).is_none());
        drop(first);
        drop(third);
        assert!(areas.take(41).is_none());
        drop(second);
        assert_eq!(areas.take(100).unwrap().pages(), 0..100);
    }

    #[test]
    fn an_area_holds_values_from_its_beginning_to_its_end() {
        let areas = AreaAllocator::new(Arc::new(MappedMemory::map(4).unwrap()));
        let (mut first, mut second) = (areas.take(2).unwrap(), areas.take(2).unwrap());
        first.slice_mut::<u64>(1024).fill(1);
        second.slice_mut::<u32>(2048).fill(2);
        assert!(first.slice::<u64>(1024).iter().all(|value| *value == 1));
        assert!(second.slice::<u32>(2048).iter().all(|value| *value == 2));
        let beyond = std::panic::catch_unwind(|| first.slice::<u64>(1025).len());
        assert!(beyond.is_err());
    }
}
