//! Functions of the C library that access the program's memory. `netram-lab pagesim cc` has the linker
//! redirect the program's calls here (`--wrap`); the library's own calls are not changed. clang calls three
//! of them by other names.

use std::cmp::Ordering;
use std::ffi::{c_char, c_int, c_void};

use netram_pagesim::workload::{Sortable, quicksort};

use super::{begin, reference, references};

unsafe extern "C" {
    fn memcpy(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void;
    fn memmove(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void;
    fn memset(target: *mut c_void, value: c_int, bytes: usize) -> *mut c_void;
    fn memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int;
    fn strlen(text: *const c_char) -> usize;
}

/// A function of the library under one or two names, called after its references are recorded.
macro_rules! wraps {
    ($($name:ident $real:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(target: *mut c_void, source: *const c_void, bytes: usize) -> *mut c_void {
            references(source.addr() as u64, bytes as u64, false);
            references(target.addr() as u64, bytes as u64, true);
            // SAFETY: the program called it with these arguments.
            unsafe { $real(target, source, bytes) }
        }
    )*};
}

wraps! {
    __wrap_memcpy memcpy;
    __tsan_memcpy memcpy;
    __wrap_memmove memmove;
    __tsan_memmove memmove;
}

macro_rules! memsets {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(target: *mut c_void, value: c_int, bytes: usize) -> *mut c_void {
            references(target.addr() as u64, bytes as u64, true);
            // SAFETY: the program called it with these arguments.
            unsafe { memset(target, value, bytes) }
        }
    )*};
}

memsets! { __wrap_memset __tsan_memset }

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_memcmp(one: *const c_void, other: *const c_void, bytes: usize) -> c_int {
    references(one.addr() as u64, bytes as u64, false);
    references(other.addr() as u64, bytes as u64, false);
    // SAFETY: the program called it with these arguments.
    unsafe { memcmp(one, other, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_strlen(text: *const c_char) -> usize {
    // SAFETY: the program called it with this argument.
    let length = unsafe { strlen(text) };
    references(text.addr() as u64, length as u64 + 1, false);
    length
}

type Compare = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;

/// Records that the program sorts.
struct Raw {
    base: *mut u8,
    bytes: usize,
    compare: Compare,
}

impl Raw {
    fn record(&self, place: usize) -> *mut u8 {
        self.base.wrapping_add(place * self.bytes)
    }
}

impl Sortable for Raw {
    /// The program's own comparison records its references.
    fn compare(&mut self, one: usize, other: usize) -> Ordering {
        let (one, other) = (self.record(one), self.record(other));
        // SAFETY: both pointers are records of the array that the program passed with this comparison
        // function.
        let order = unsafe { (self.compare)(one.cast(), other.cast()) };
        order.cmp(&0)
    }

    /// Exchanges byte by byte, as libraries of the paper's time did for records that are not known to consist
    /// of words.
    fn exchange(&mut self, one: usize, other: usize) {
        let (one, other) = (self.record(one), self.record(other));
        if one == other {
            return;
        }
        for byte in 0..self.bytes {
            let (left, right) = (one.wrapping_add(byte), other.wrapping_add(byte));
            for (address, write) in [(left, false), (right, false), (left, true), (right, true)] {
                reference(address.addr() as u64, 1, write);
            }
        }
        // SAFETY: two different records of the array, so they do not overlap.
        unsafe { std::ptr::swap_nonoverlapping(one, other, self.bytes) };
    }
}

/// Sorts by [`quicksort`], as the C library of the paper's time did.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_qsort(base: *mut c_void, records: usize, bytes: usize, compare: Compare) {
    begin();
    let mut raw = Raw {
        base: base.cast(),
        bytes,
        compare,
    };
    quicksort(&mut raw, records);
}
