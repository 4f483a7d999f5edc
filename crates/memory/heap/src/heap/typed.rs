//! Typed access to values in blocks.

use netram_rvm::ReadGuard;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Heap;
use crate::block::{HeapBytes, locate};
use crate::error::{AllocError, BlockAccessError};
use crate::layout::{HeapGeometry, root_at};
use crate::limit::ROOTS;
use crate::pointer::{Ptr, Slice};
use crate::transact::{EditBytes, Transact};

impl Heap {
    /// Allocates a block and stores a value in it.
    ///
    /// # Errors
    ///
    /// As [`Heap::allocate`]; also [`AllocError::Range`] if the value cannot be stored.
    pub fn alloc<T, X: Transact>(&self, transaction: &mut X, value: &T) -> Result<Ptr<T>, AllocError>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        self.alloc_bytes(transaction, value.as_bytes()).map(Ptr::cast)
    }

    /// Allocates a block and stores values in it, one after the other.
    ///
    /// # Errors
    ///
    /// As [`Heap::alloc`].
    pub fn alloc_slice<T, X: Transact>(
        &self,
        transaction: &mut X,
        values: &[T],
    ) -> Result<Slice<T>, AllocError>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let block = self.alloc_bytes(transaction, values.as_bytes())?;
        Ok(Slice::new(block.cast(), values.len() as u64))
    }

    /// Allocates a block and stores bytes in it.
    ///
    /// # Errors
    ///
    /// As [`Heap::alloc`].
    pub fn alloc_bytes<X: Transact>(&self, transaction: &mut X, bytes: &[u8]) -> Result<Ptr<u8>, AllocError> {
        let at = self.take(transaction, bytes.len())?;
        let block = Ptr::from_offset(self.inner.geometry.pointer(at));
        let stored = self.inner.slice.write(transaction, at, bytes);
        if let Err(error) = stored {
            // A transaction that accepts no more ranges cannot free the block either; its abort does.
            let _ = self.free(transaction, block);
            return Err(error.into());
        }
        Ok(block)
    }

    /// A copy of the value in a block.
    ///
    /// # Errors
    ///
    /// [`BlockAccessError::Block`] if the pointer is not an allocated block; [`BlockAccessError::Small`] if
    /// the block is smaller than the value.
    pub fn get<T>(&self, pointer: Ptr<T>) -> Result<T, BlockAccessError>
    where
        T: FromBytes + IntoBytes,
    {
        let source = &self.inner.slice;
        let at = reach(source, self.inner.geometry, pointer, 1)?;
        let mut value = T::new_zeroed();
        source.copy(at, value.as_mut_bytes());
        Ok(value)
    }

    /// A copy of the values in a block.
    ///
    /// # Errors
    ///
    /// As [`Heap::get`].
    pub fn get_slice<T>(&self, slice: Slice<T>) -> Result<Vec<T>, BlockAccessError>
    where
        T: FromBytes + IntoBytes,
    {
        let source = &self.inner.slice;
        let at = reach(source, self.inner.geometry, slice.block(), slice.len())?;
        // The block holds the values, so their count fits the address space.
        let mut values = Vec::with_capacity(slice.len() as usize);
        for index in 0..slice.len() {
            let mut value = T::new_zeroed();
            source.copy(at + index * size_of::<T>() as u64, value.as_mut_bytes());
            values.push(value);
        }
        Ok(values)
    }

    /// Stores a value in a block.
    ///
    /// # Errors
    ///
    /// As [`Heap::get`]; also [`BlockAccessError::Range`] if the transaction refuses the change.
    pub fn set<T, X: Transact>(
        &self,
        transaction: &mut X,
        pointer: Ptr<T>,
        value: &T,
    ) -> Result<(), BlockAccessError>
    where
        T: IntoBytes + Immutable,
    {
        let at = reach(&self.inner.slice, self.inner.geometry, pointer, 1)?;
        self.inner.slice.write(transaction, at, value.as_bytes())?;
        Ok(())
    }

    /// The pointer in a root, from which a program finds its data. Null until it is set.
    ///
    /// # Errors
    ///
    /// [`BlockAccessError::Root`] if `number` is not below [`ROOTS`].
    pub fn root<T>(&self, number: usize) -> Result<Ptr<T>, BlockAccessError> {
        root(&self.inner.slice, number)
    }

    /// Sets a root.
    ///
    /// # Errors
    ///
    /// As [`Heap::root`]; also [`BlockAccessError::Range`] if the transaction refuses the change.
    pub fn set_root<T, X: Transact>(
        &self,
        transaction: &mut X,
        number: usize,
        pointer: Ptr<T>,
    ) -> Result<(), BlockAccessError> {
        let at = root_offset(number)?;
        self.inner
            .slice
            .write(transaction, at, &pointer.offset().to_le_bytes())?;
        Ok(())
    }

    /// Access to the heap for reading in place. The region is locked shared while the view lives.
    pub fn view(&self) -> HeapView<'_> {
        HeapView {
            guard: self.region().read(),
            start: self.start(),
            geometry: self.inner.geometry,
        }
    }

    /// Access to the heap in borrowed bytes of its region, or of a copy: for a pinned reader of a shared
    /// region.
    ///
    /// # Panics
    ///
    /// Panics if the bytes end before the heap does.
    pub fn borrowed_view<'b>(&self, region: &'b [u8]) -> BorrowedHeap<'b> {
        let geometry = self.inner.geometry;
        let bytes = &region[self.start()..][..geometry.bytes() as usize];
        BorrowedHeap { bytes, geometry }
    }

    /// Access to the heap for changing in place, within a transaction. The region is locked while the edit
    /// lives.
    pub fn edit<'h, X: Transact>(&'h self, transaction: &'h mut X) -> HeapEdit<'h, X> {
        HeapEdit {
            guard: transaction.edit(self.region()),
            start: self.start(),
            geometry: self.inner.geometry,
        }
    }
}

/// A heap's blocks, borrowed for reading.
#[derive(Debug)]
pub struct HeapView<'h> {
    guard: ReadGuard<'h>,
    start: usize,
    geometry: HeapGeometry,
}

impl HeapView<'_> {
    /// The pointer in a root.
    ///
    /// # Errors
    ///
    /// As [`Heap::root`].
    pub fn root<T>(&self, number: usize) -> Result<Ptr<T>, BlockAccessError> {
        root(&self.guard[self.start..], number)
    }

    /// The value in a block.
    ///
    /// # Errors
    ///
    /// As [`Heap::get`]; also [`BlockAccessError::Unaligned`] if the value is not aligned in this mapping.
    pub fn get<T>(&self, pointer: Ptr<T>) -> Result<&T, BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        get(&self.guard[self.start..], self.geometry, pointer)
    }

    /// The values in a block.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`].
    pub fn slice<T>(&self, slice: Slice<T>) -> Result<&[T], BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        self::slice(&self.guard[self.start..], self.geometry, slice)
    }
}

/// A heap's blocks in borrowed bytes.
#[derive(Clone, Copy)]
pub struct BorrowedHeap<'b> {
    bytes: &'b [u8],
    geometry: HeapGeometry,
}

impl<'b> BorrowedHeap<'b> {
    /// The pointer in a root.
    ///
    /// # Errors
    ///
    /// As [`Heap::root`].
    pub fn root<T>(&self, number: usize) -> Result<Ptr<T>, BlockAccessError> {
        root(self.bytes, number)
    }

    /// The value in a block.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`].
    pub fn get<T>(&self, pointer: Ptr<T>) -> Result<&'b T, BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        get(self.bytes, self.geometry, pointer)
    }

    /// The values in a block.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`].
    pub fn slice<T>(&self, slice: Slice<T>) -> Result<&'b [T], BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        self::slice(self.bytes, self.geometry, slice)
    }
}

impl std::fmt::Debug for BorrowedHeap<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Lens").finish_non_exhaustive()
    }
}

/// A heap's blocks, borrowed for changing. The call that lends bytes for writing also declares them.
pub struct HeapEdit<'h, X: Transact + 'h> {
    guard: X::Edit<'h>,
    start: usize,
    geometry: HeapGeometry,
}

impl<X: Transact> HeapEdit<'_, X> {
    /// The pointer in a root.
    ///
    /// # Errors
    ///
    /// As [`Heap::root`].
    pub fn root<T>(&self, number: usize) -> Result<Ptr<T>, BlockAccessError> {
        root(&self.guard[self.start..], number)
    }

    /// The value in a block.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`].
    pub fn get<T>(&self, pointer: Ptr<T>) -> Result<&T, BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        get(&self.guard[self.start..], self.geometry, pointer)
    }

    /// The values in a block.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`].
    pub fn slice<T>(&self, slice: Slice<T>) -> Result<&[T], BlockAccessError>
    where
        T: FromBytes + Immutable + KnownLayout,
    {
        self::slice(&self.guard[self.start..], self.geometry, slice)
    }

    /// The value in a block, for writing. All of it is logged.
    ///
    /// # Errors
    ///
    /// As [`HeapView::get`]; also [`BlockAccessError::Range`] if the transaction refuses the change.
    pub fn get_mut<T>(&mut self, pointer: Ptr<T>) -> Result<&mut T, BlockAccessError>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout,
    {
        let at = reach(&self.guard[self.start..], self.geometry, pointer, 1)?;
        let bytes = self.guard.range_mut(self.start + at as usize, size_of::<T>())?;
        let at = self.geometry.pointer(at);
        T::mut_from_bytes(bytes).map_err(|_| BlockAccessError::Unaligned { at })
    }

    /// `count` values in a block from `first` on, for writing. Only these are logged.
    ///
    /// # Errors
    ///
    /// As [`HeapEdit::get_mut`].
    pub fn slice_mut<T>(
        &mut self,
        slice: Slice<T>,
        first: u64,
        count: u64,
    ) -> Result<&mut [T], BlockAccessError>
    where
        T: FromBytes + IntoBytes + Immutable + KnownLayout,
    {
        let at = reach(
            &self.guard[self.start..],
            self.geometry,
            slice.block(),
            slice.len(),
        )?;
        let beyond = first.checked_add(count).is_none_or(|end| end > slice.len());
        if beyond {
            return Err(BlockAccessError::Small {
                at: self.geometry.pointer(at),
                found: slice.len() * size_of::<T>() as u64,
                needed: first.saturating_add(count).saturating_mul(size_of::<T>() as u64),
            });
        }
        let at = at + first * size_of::<T>() as u64;
        let bytes = self
            .guard
            .range_mut(self.start + at as usize, count as usize * size_of::<T>())?;
        let at = self.geometry.pointer(at);
        <[T]>::mut_from_bytes(bytes).map_err(|_| BlockAccessError::Unaligned { at })
    }
}

impl<X: Transact> std::fmt::Debug for HeapEdit<'_, X> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Edit").finish_non_exhaustive()
    }
}

fn get<T>(bytes: &[u8], geometry: HeapGeometry, pointer: Ptr<T>) -> Result<&T, BlockAccessError>
where
    T: FromBytes + Immutable + KnownLayout,
{
    let at = reach(bytes, geometry, pointer, 1)?;
    let value = &bytes[at as usize..at as usize + size_of::<T>()];
    let at = geometry.pointer(at);
    T::ref_from_bytes(value).map_err(|_| BlockAccessError::Unaligned { at })
}

fn slice<T>(bytes: &[u8], geometry: HeapGeometry, slice: Slice<T>) -> Result<&[T], BlockAccessError>
where
    T: FromBytes + Immutable + KnownLayout,
{
    let at = reach(bytes, geometry, slice.block(), slice.len())?;
    let values = &bytes[at as usize..at as usize + slice.len() as usize * size_of::<T>()];
    let at = geometry.pointer(at);
    <[T]>::ref_from_bytes(values).map_err(|_| BlockAccessError::Unaligned { at })
}

/// Offset of `count` values in a block, after checking that the block is allocated and large enough.
fn reach<T, B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    pointer: Ptr<T>,
    count: u64,
) -> Result<u64, BlockAccessError> {
    let block = locate(bytes, geometry, pointer.offset())?;
    let needed = count.saturating_mul(size_of::<T>() as u64);
    match needed <= block.bytes {
        true => Ok(block.at),
        false => Err(BlockAccessError::Small {
            at: pointer.offset(),
            found: block.bytes,
            needed,
        }),
    }
}

fn root<T, B: HeapBytes + ?Sized>(bytes: &B, number: usize) -> Result<Ptr<T>, BlockAccessError> {
    let mut raw = [0; 8];
    bytes.copy(root_offset(number)?, &mut raw);
    Ok(Ptr::from_offset(u64::from_le_bytes(raw)))
}

fn root_offset(number: usize) -> Result<u64, BlockAccessError> {
    match number < ROOTS {
        true => Ok(root_at(number)),
        false => Err(BlockAccessError::Root { number, count: ROOTS }),
    }
}
