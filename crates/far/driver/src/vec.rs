//! A vector whose values may be elsewhere.

mod words;

use std::marker::PhantomData;

use netram_far_machine::arena::Page;
use netram_far_machine::limit::PAGE_BYTES;

use crate::arena::{Arena, FarAccessError};
use crate::sys::{ArenaArea, Pod};

/// A vector in an arena, with a fixed capacity.
///
/// [`get`](FarVec::get), [`set`](FarVec::set), [`gather`](FarVec::gather) and [`scatter`](FarVec::scatter)
/// fail when a page is lost. A slice is memory as any other: a reference to a value that is away waits for
/// its page, and to one that is lost it is a bus error (`SIGBUS`). A child of `fork` has none of it: there
/// each reference is a segmentation fault, never zeros.
#[derive(Debug)]
pub struct FarVec<T: Pod> {
    arena: Arena,
    area: ArenaArea,
    length: usize,
    capacity: usize,
    kind: PhantomData<T>,
}

/// Why there is no vector, or why it does not grow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarVecError {
    /// The arena has not so many addresses in a row.
    #[error("the arena has no {pages} pages in a row")]
    Addresses {
        /// Pages that were asked for.
        pages: usize,
    },
    /// It has a fixed capacity.
    #[error("a vector of {capacity} values is full")]
    Full {
        /// Its capacity.
        capacity: usize,
    },
    /// The new values cannot be stored.
    #[error(transparent)]
    Access(#[from] FarAccessError),
}

impl<T: Pod> FarVec<T> {
    /// An empty vector with room for so many values. Room costs nothing until it is used.
    pub fn with_capacity(arena: &Arena, capacity: usize) -> Result<FarVec<T>, FarVecError> {
        assert!(size_of::<T>() > 0, "a value without bytes needs no arena");
        assert!(align_of::<T>() <= PAGE_BYTES, "a vector begins with a page");
        let bytes = capacity.saturating_mul(size_of::<T>());
        let pages = bytes.div_ceil(PAGE_BYTES).max(1);
        let area = arena.take(pages).ok_or(FarVecError::Addresses { pages })?;
        Ok(FarVec {
            arena: arena.clone(),
            area,
            length: 0,
            capacity,
            kind: PhantomData,
        })
    }

    /// So many zeros.
    pub fn zeros(arena: &Arena, length: usize) -> Result<FarVec<T>, FarVecError> {
        let mut vec = FarVec::with_capacity(arena, length)?;
        vec.length = length;
        Ok(vec)
    }

    /// How many values it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many it can have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds a value. Refused while so many pages wait for room at lenders that none may leave.
    pub fn push(&mut self, value: T) -> Result<(), FarVecError> {
        if self.length == self.capacity {
            return Err(FarVecError::Full {
                capacity: self.capacity,
            });
        }
        let index = self.length;
        // A look at each new page is enough: what is here already needs no room.
        if (index * size_of::<T>()).is_multiple_of(PAGE_BYTES) {
            self.arena.room()?;
        }
        self.length += 1;
        self.set(index, value).map_err(|error| {
            self.length = index;
            error.into()
        })
    }

    /// Drops the last values. Pages that had only them are nowhere from now on.
    pub fn truncate(&mut self, length: usize) {
        if length >= self.length {
            return;
        }
        let first = (length * size_of::<T>()).div_ceil(PAGE_BYTES);
        let last = (self.length * size_of::<T>()).div_ceil(PAGE_BYTES);
        let start = self.area.pages().start;
        self.arena.empty(start + first..start + last);
        self.length = length;
    }

    /// A value. Where the arena allows [words](crate::WordAccess), one that is away comes without its page,
    /// until that has earned to come.
    pub fn get(&self, index: usize) -> Result<T, FarAccessError> {
        self.get_word(index).map_or_else(|| self.get_in_page(index), Ok)
    }

    fn get_in_page(&self, index: usize) -> Result<T, FarAccessError> {
        let pages = self.pages(index);
        self.with_pages(pages, |vec| vec.as_slice()[index])
    }

    /// Stores a value. Where the arena allows [words](crate::WordAccess), one whose page is away is kept here
    /// until that comes.
    pub fn set(&mut self, index: usize, value: T) -> Result<(), FarAccessError> {
        match self.set_word(index, value) {
            true => Ok(()),
            false => self.set_in_page(index, value),
        }
    }

    fn set_in_page(&mut self, index: usize, value: T) -> Result<(), FarAccessError> {
        let pages = self.pages(index);
        pages.clone().try_for_each(|page| self.pin(pages.start, page))?;
        self.as_mut_slice()[index] = value;
        pages.for_each(|page| self.arena.unpin(Page(page)));
        Ok(())
    }

    /// All values, as memory.
    pub fn as_slice(&self) -> &[T] {
        self.area.slice(self.length)
    }

    /// All values, as memory to be written.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.area.slice_mut(self.length)
    }

    /// Where it begins, for code that keeps its own discipline: C, Python. The address stays while the vector
    /// lives.
    ///
    /// Whoever dereferences it vouches that nobody has a slice of the vector meanwhile, and that no two
    /// threads store to the same bytes.
    pub fn as_ptr(&self) -> *mut T {
        self.area.as_ptr().cast()
    }

    /// All values, in their order.
    pub fn iter(&self) -> std::iter::Copied<std::slice::Iter<'_, T>> {
        self.as_slice().iter().copied()
    }

    /// The pages of a value.
    fn pages(&self, index: usize) -> std::ops::Range<u32> {
        self.pages_of(size_of::<T>(), index)
    }

    /// The pages of a value, if values had so many bytes.
    fn pages_of(&self, size: usize, index: usize) -> std::ops::Range<u32> {
        let length = self.length * size_of::<T>() / size;
        assert!(index < length, "value {index} of {length}");
        let start = self.area.pages().start;
        let page = |offset: usize| (start + offset / PAGE_BYTES) as u32;
        page(index * size)..page((index + 1) * size - 1) + 1
    }

    fn with_pages<R>(
        &self,
        pages: std::ops::Range<u32>,
        what: impl FnOnce(&Self) -> R,
    ) -> Result<R, FarAccessError> {
        pages.clone().try_for_each(|page| self.pin(pages.start, page))?;
        let result = what(self);
        pages.for_each(|page| self.arena.unpin(Page(page)));
        Ok(result)
    }

    /// Pins a page; if that fails, those from `first` on are let go.
    fn pin(&self, first: u32, page: u32) -> Result<(), FarAccessError> {
        self.arena.pin(Page(page)).inspect_err(|_| {
            (first..page).for_each(|page| self.arena.unpin(Page(page)));
        })
    }
}

impl<T: Pod> Drop for FarVec<T> {
    fn drop(&mut self) {
        // What comes after it in the same place begins with zeros.
        self.arena.empty(self.area.pages());
    }
}

impl<'a, T: Pod> IntoIterator for &'a FarVec<T> {
    type Item = T;
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
