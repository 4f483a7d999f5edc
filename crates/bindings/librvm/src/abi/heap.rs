//! Records and arrays on C's heap, so that programs may free them with `free`.

use std::ptr::null_mut;

use libc::{calloc, free};

use super::{is_usable, put, record};
use crate::record::CRecord;

/// A copy of `values` on C's heap; NULL if there are none. Returns `None` without memory.
pub(crate) fn array<T: Copy>(values: &[T]) -> Option<*mut T> {
    if values.is_empty() {
        return Some(null_mut());
    }
    // SAFETY: takes two numbers, whose product the C library checks.
    let space: *mut T = unsafe { calloc(values.len(), size_of::<T>()) }.cast();
    if space.is_null() {
        return None;
    }
    assert!(space.is_aligned(), "C's heap is aligned for every type of C");
    // SAFETY: `calloc` returned room for this many values, which is known only here.
    unsafe { space.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
    Some(space)
}

/// Frees memory from [`fn@array`] or from C's own `malloc`.
pub(crate) fn release<T>(pointer: *mut T) {
    // SAFETY: the header states which pointers a program may pass: those of this heap, once. NULL is allowed.
    unsafe { free(pointer.cast()) }
}

/// `rvm_malloc_X`; returns NULL without memory.
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

/// `rvm_free_X`. The freed memory is overwritten so that it is no valid record any more.
pub(super) fn free_record<R: CRecord>(pointer: *mut R) {
    let Some(mut value) = record(pointer) else { return };
    if value.head().from_heap != 0 {
        value.head().id = 0;
        put(pointer, value);
        release(pointer);
    }
}
