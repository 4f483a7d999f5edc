//! A vector in far memory.

mod words;

use std::marker::PhantomData;

use netram_far_machine::arena::Page;
use netram_far_machine::limit::PAGE_BYTES;

use crate::arena::{Arena, FarAccessError};
use crate::sys::{ArenaArea, Pod};

/// A vector of fixed capacity in an arena.
///
/// [`get`](FarVec::get), [`set`](FarVec::set), [`gather`](FarVec::gather) and [`scatter`](FarVec::scatter)
/// return an error if a page is lost. A slice is used like any memory: a reference to a remote value waits
/// for its page, and one to a lost value raises a bus error (`SIGBUS`). A child of `fork` does not inherit
/// the vector: a reference there is a segmentation fault, never zeros.
#[derive(Debug)]
pub struct FarVec<T: Pod> {
    arena: Arena,
    area: ArenaArea,
    length: usize,
    capacity: usize,
    kind: PhantomData<T>,
}

/// Why a vector cannot be made or extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FarVecError {
    /// The arena has no contiguous range of addresses of that size.
    #[error("the arena has no {pages} contiguous free pages")]
    Addresses {
        /// Number of pages requested.
        pages: usize,
    },
    /// The vector is at its fixed capacity.
    #[error("a vector of {capacity} values is full")]
    Full {
        /// The capacity in values.
        capacity: usize,
    },
    /// The new values cannot be stored.
    #[error(transparent)]
    Access(#[from] FarAccessError),
}

impl<T: Pod> FarVec<T> {
    /// An empty vector with a capacity. Capacity costs nothing until it is used.
    ///
    /// # Errors
    ///
    /// [`FarVecError::Addresses`] if the arena has no such range.
    pub fn with_capacity(arena: &Arena, capacity: usize) -> Result<FarVec<T>, FarVecError> {
        assert!(size_of::<T>() > 0, "values have a size");
        assert!(align_of::<T>() <= PAGE_BYTES, "a vector is aligned to a page");
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

    /// A vector of `length` zeros.
    ///
    /// # Errors
    ///
    /// [`FarVecError::Addresses`] if the arena has no such range.
    pub fn zeros(arena: &Arena, length: usize) -> Result<FarVec<T>, FarVecError> {
        let mut vec = FarVec::with_capacity(arena, length)?;
        vec.length = length;
        Ok(vec)
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the vector has no values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Maximum number of values.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends a value.
    ///
    /// # Errors
    ///
    /// [`FarVecError::Full`] at the capacity; [`FarVecError::Access`] if the page is lost, or no lender has
    /// room.
    pub fn push(&mut self, value: T) -> Result<(), FarVecError> {
        if self.length == self.capacity {
            return Err(FarVecError::Full {
                capacity: self.capacity,
            });
        }
        let index = self.length;
        // Checked once per page: a page that is local already needs no room.
        if (index * size_of::<T>()).is_multiple_of(PAGE_BYTES) {
            self.arena.room()?;
        }
        self.length += 1;
        self.set(index, value).map_err(|error| {
            self.length = index;
            error.into()
        })
    }

    /// Drops the last values. Pages without other values are discarded.
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

    /// Reads a value. With [words](crate::WordAccess), a remote value is read without its page until the
    /// page's counter is spent.
    ///
    /// # Errors
    ///
    /// [`FarAccessError`] if its page is lost or cannot be brought.
    pub fn get(&self, index: usize) -> Result<T, FarAccessError> {
        self.get_word(index).map_or_else(|| self.get_in_page(index), Ok)
    }

    fn get_in_page(&self, index: usize) -> Result<T, FarAccessError> {
        let pages = self.pages(index);
        self.with_pages(pages, |vec| vec.as_slice()[index])
    }

    /// Stores a value. With [words](crate::WordAccess), a value of a remote page is kept locally until the
    /// page arrives.
    ///
    /// # Errors
    ///
    /// [`FarAccessError`] if its page is lost or cannot be brought.
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

    /// All values as a slice.
    pub fn as_slice(&self) -> &[T] {
        self.area.slice(self.length)
    }

    /// All values as a mutable slice.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.area.slice_mut(self.length)
    }

    /// Address of the first value, for code with its own discipline such as C or Python. It is valid while
    /// the vector lives.
    ///
    /// A caller that dereferences it must make sure that no slice of the vector exists meanwhile. No two
    /// threads may store to the same bytes.
    pub fn as_ptr(&self) -> *mut T {
        self.area.as_ptr().cast()
    }

    /// Iterates over all values in order.
    pub fn iter(&self) -> std::iter::Copied<std::slice::Iter<'_, T>> {
        self.as_slice().iter().copied()
    }

    /// Pages of a value.
    fn pages(&self, index: usize) -> std::ops::Range<u32> {
        self.pages_of(size_of::<T>(), index)
    }

    /// Pages of a value if values had `size` bytes.
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

    /// Pins a page; on failure unpins those from `first` on.
    fn pin(&self, first: u32, page: u32) -> Result<(), FarAccessError> {
        self.arena.pin(Page(page)).inspect_err(|_| {
            (first..page).for_each(|page| self.arena.unpin(Page(page)));
        })
    }
}

impl<T: Pod> Drop for FarVec<T> {
    fn drop(&mut self) {
        // The next owner of these pages begins with zeros.
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
