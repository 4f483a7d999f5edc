//! Records and arrays on C's heap, where programs may free them with `free`.

use std::ptr::null_mut;

use libc::{calloc, free};

use super::{is_usable, put, record};
use crate::record::CRecord;

/// A copy of `values` on the heap. `None`: no memory. Nothing: NULL.
pub(crate) fn array<T: Copy>(values: &[T]) -> Option<*mut T> {
    if values.is_empty() {
        return Some(null_mut());
    }
    // SAFETY: two numbers; the C library checks their product.
    let space: *mut T = unsafe { calloc(values.len(), size_of::<T>()) }.cast();
    if space.is_null() {
        return None;
    }
    assert!(space.is_aligned(), "C's heap is aligned for every type of C");
    // SAFETY: `calloc` gave room for so many values, which nobody else knows.
    unsafe { space.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Some(space)
}

/// Gives back what came from [`array`] or C's own `malloc`.
pub(crate) fn release<T>(pointer: *mut T) {
    // SAFETY: the header says which pointers a program may hand over: those of this heap, once. NULL is fine.
    unsafe { free(pointer.cast()) }
}

/// `rvm_malloc_X`: NULL without memory.
pub(super) fn malloc<R: CRecord>() -> *mut R {
    array(&[R::fresh(true)]).unwrap_or(null_mut())
}

/// `rvm_init_X`.
pub(super) fn init<R: CRecord>(pointer: *mut R) {
    if is_usable(pointer) {
        put(pointer, R::fresh(false));
    }
}

/// `rvm_copy_X`.
pub(super) fn copy<R: CRecord>(pointer: *const R) -> *mut R {
    let Some(mut value) = record(pointer) else {
        return null_mut();
    };
    value.head().from_heap = 1;
    array(&[value]).unwrap_or(null_mut())
}

/// `rvm_free_X`. What is freed is no record any more, should anybody look.
pub(super) fn free_record<R: CRecord>(pointer: *mut R) {
    let Some(mut value) = record(pointer) else { return };
    if value.head().from_heap != 0 {
        value.head().id = 0;
        put(pointer, value);
        release(pointer);
    }
}
