//! This library's own memory is the C library's, whatever the program has: a thread that serves faults must never wait for one.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;

unsafe extern "C" {
    // The C library's own, under names that nobody takes.
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
    fn __libc_free(old: *mut c_void);
}

/// What the C library aligns to without being asked.
const ALIGN: usize = 16;

struct Own;

#[global_allocator]
static OWN: Own = Own;

// SAFETY: each method is the C library's, which keeps this contract; none of them unwinds.
unsafe impl GlobalAlloc for Own {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (bytes, align) = (layout.size(), layout.align());
        if align <= ALIGN {
            // SAFETY: any number of bytes may be asked for.
            return unsafe { __libc_malloc(bytes) }.cast();
        }
        // SAFETY: a layout's alignment is a power of two.
        unsafe { __libc_memalign(align, bytes) }.cast()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: any number of bytes may be asked for.
            return unsafe { __libc_calloc(layout.size(), 1) }.cast();
        }
        // SAFETY: the caller's layout.
        let new = unsafe { self.alloc(layout) };
        if !new.is_null() {
            // SAFETY: it has so many bytes, and is the caller's alone.
            unsafe { ptr::write_bytes(new, 0, layout.size()) };
        }
        new
    }

    unsafe fn dealloc(&self, old: *mut u8, _: Layout) {
        // SAFETY: the caller had it from here.
        unsafe { __libc_free(old.cast()) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= ALIGN {
            // SAFETY: the caller had it from here.
            return unsafe { __libc_realloc(old.cast(), bytes) }.cast();
        }
        // SAFETY: the caller says that this size is no overflow with this alignment.
        let wanted = unsafe { Layout::from_size_align_unchecked(bytes, layout.align()) };
        // SAFETY: as above.
        let new = unsafe { self.alloc(wanted) };
        if !new.is_null() {
            let both = layout.size().min(bytes);
            // SAFETY: both have so many bytes, and they are two allocations.
            unsafe { ptr::copy_nonoverlapping(old, new, both) };
            // SAFETY: the caller had it from here.
            unsafe { self.dealloc(old, layout) };
        }
        new
    }
}
