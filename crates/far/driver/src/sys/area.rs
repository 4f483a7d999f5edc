//! Areas of an arena's memory, each with one owner.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use netram_far_machine::limit::PAGE_BYTES;

use super::MappedMemory;

/// A type that may be stored in an arena: any bytes are a value, zeros too, and it has no padding.
///
/// Implemented for every type for which `zerocopy` proves that.
pub trait Pod: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy {}
impl<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + Copy> Pod for T {}

/// Free areas of a memory: first page → number of pages, with adjacent ones merged.
#[derive(Debug)]
pub(crate) struct AreaAllocator {
    memory: Arc<MappedMemory>,
    free: Mutex<BTreeMap<usize, usize>>,
}

/// Whole pages of a memory with a single owner.
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

    /// Takes the first free area of `pages` pages. `None`: there is none.
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
    /// Page numbers of the area.
    pub(crate) fn pages(&self) -> Range<usize> {
        self.pages.clone()
    }

    /// Includes or excludes a part of the area, counted from its first page, in core dumps. By default all of
    /// it is included.
    pub(crate) fn dump(&self, pages: Range<usize>, wanted: bool) {
        assert!(pages.end <= self.pages.len(), "the pages are in the area");
        self.areas
            .memory
            .dump(self.pages.start + pages.start, pages.len(), wanted);
    }

    /// Address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.areas.memory.at(self.pages.start * PAGE_BYTES).cast()
    }

    /// Values from the beginning of the area.
    pub(crate) fn slice<T: Pod>(&self, count: usize) -> &[T] {
        let at = self.check::<T>(count);
        // SAFETY: that many values lie inside the area, aligned to a page; any bytes are values (`Pod`); only
        // `&mut self` writes them.
        unsafe { std::slice::from_raw_parts(at, count) }
    }

    /// As [`ArenaArea::slice`], for writing.
    pub(crate) fn slice_mut<T: Pod>(&mut self, count: usize) -> &mut [T] {
        let at = self.check::<T>(count);
        // SAFETY: as above; and no two areas share a page (`AreaAllocator::take`), so `&mut self` is the only
        // access.
        unsafe { std::slice::from_raw_parts_mut(at.cast_mut(), count) }
    }

    fn check<T>(&self, count: usize) -> *const T {
        let bytes = count
            .checked_mul(size_of::<T>())
            .expect("the size fits an address");
        assert!(
            bytes <= self.pages.len() * PAGE_BYTES,
            "the values are in the area"
        );
        assert!(align_of::<T>() <= PAGE_BYTES, "an area is aligned to a page");
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
    fn areas_do_not_overlap_and_freed_ones_merge() {
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
    fn an_area_can_be_filled_completely() {
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
