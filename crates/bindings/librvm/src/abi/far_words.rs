//! The functions of `far.h` that access elements without their pages.

use std::ffi::{c_int, c_void};

use super::far::handle;
use super::shared::Opaque;
use super::{guarded, is_usable};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::far::{FARS, FarElements};
use crate::record::Length;

/// An array of elements in C's memory, which may be read or written.
struct Array {
    start: *mut u8,
    size: usize,
    count: usize,
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_gather(
    far: Opaque,
    memory: *const c_void,
    size: Length,
    indices: *const Length,
    count: Length,
    into: *mut c_void,
) -> c_int {
    guarded(|| {
        let into = Array::of(into, size, count)?;
        let index_of = listed(indices, into.count)?;
        gather(far, memory, &into, &index_of)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_gather_strided(
    far: Opaque,
    memory: *const c_void,
    size: Length,
    first: Length,
    step: Length,
    count: Length,
    into: *mut c_void,
) -> c_int {
    guarded(|| gather(far, memory, &Array::of(into, size, count)?, &strided(first, step)))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_scatter(
    far: Opaque,
    memory: *mut c_void,
    size: Length,
    indices: *const Length,
    count: Length,
    values: *const c_void,
) -> c_int {
    guarded(|| {
        let values = Array::of(values.cast_mut(), size, count)?;
        let index_of = listed(indices, values.count)?;
        scatter(far, memory, &values, &index_of)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_scatter_strided(
    far: Opaque,
    memory: *mut c_void,
    size: Length,
    first: Length,
    step: Length,
    count: Length,
    values: *const c_void,
) -> c_int {
    guarded(|| {
        let values = Array::of(values.cast_mut(), size, count)?;
        scatter(far, memory, &values, &strided(first, step))
    })
}

fn gather(
    far: Opaque,
    memory: *const c_void,
    into: &Array,
    index_of: &dyn Fn(usize) -> Option<u64>,
) -> Result<(), CallFailure> {
    FARS.ready()?;
    FARS.gather(&into.elements(far, memory, index_of)?, |first, bytes| {
        into.fill(first, bytes)
    })
}

fn scatter(
    far: Opaque,
    memory: *const c_void,
    values: &Array,
    index_of: &dyn Fn(usize) -> Option<u64>,
) -> Result<(), CallFailure> {
    FARS.ready()?;
    FARS.scatter(&values.elements(far, memory, index_of)?, |first, bytes| {
        values.copy(first, bytes)
    })
}

/// Indexes of the elements, from C's array.
fn listed(indices: *const Length, count: usize) -> Result<impl Fn(usize) -> Option<u64>, CallFailure> {
    if count > 0 && !is_usable(indices) {
        return Err(wrong("`indices` is NULL, or misaligned"));
    }
    if count.checked_mul(size_of::<Length>()).is_none_or(too_large) {
        return Err(wrong("the number of indices exceeds the address space"));
    }
    Ok(move |which: usize| {
        assert!(which < count);
        // SAFETY: the array is neither NULL nor misaligned, and the header requires `count` numbers in it.
        let element = unsafe { indices.add(which) };
        // SAFETY: as above.
        Some(unsafe { element.read() })
    })
}

fn strided(first: Length, step: Length) -> impl Fn(usize) -> Option<u64> {
    move |which| step.checked_mul(which as u64)?.checked_add(first)
}

impl Array {
    fn of(start: *mut c_void, size: Length, count: Length) -> Result<Array, CallFailure> {
        let (size, count) = (size as usize, count as usize);
        if start.is_null() && count > 0 {
            return Err(wrong("the array of elements is NULL"));
        }
        if size.checked_mul(count).is_none_or(too_large) {
            return Err(wrong("the elements' bytes exceed the address space"));
        }
        Ok(Array {
            start: start.cast(),
            size,
            count,
        })
    }

    fn elements<'a>(
        &self,
        far: Opaque,
        memory: *const c_void,
        index_of: &'a dyn Fn(usize) -> Option<u64>,
    ) -> Result<FarElements<'a>, CallFailure> {
        Ok(FarElements {
            far: handle(far)?,
            address: memory.addr(),
            size: self.size,
            count: self.count,
            index_of,
        })
    }

    /// Copies elements into the array, from element `first` on.
    fn fill(&self, first: usize, bytes: &[u8]) {
        let target = self.address_of(first, bytes.len());
        // SAFETY: the header requires `count` elements that may be written, and these are among them. The
        // bytes are a copy of our own.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies elements out of the array, from element `first` on.
    fn copy(&self, first: usize, bytes: &mut [u8]) {
        let source = self.address_of(first, bytes.len());
        // SAFETY: the header requires `count` elements, and these are among them. The buffer is our own.
        unsafe { source.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) }
    }

    fn address_of(&self, first: usize, bytes: usize) -> *mut u8 {
        assert!(first * self.size + bytes <= self.count * self.size);
        // SAFETY: the assertion keeps it inside the array that the header requires.
        unsafe { self.start.add(first * self.size) }
    }
}

fn too_large(bytes: usize) -> bool {
    bytes > isize::MAX as usize
}

fn wrong(text: &str) -> CallFailure {
    CallFailure::new(ReturnCode::Range, text)
}
