//! An allocator that counts, for tests of paths that must not allocate.
//!
//! ```
//! use netram_alloc_counter::{AllocationCounter, allocations};
//!
//! #[global_allocator]
//! static ALLOCATOR: AllocationCounter = AllocationCounter;
//!
//! let before = allocations();
//! drop(Box::new(1));
//! assert_eq!(allocations() - before, 1);
//! ```
//!
//! A test that counts the whole process is the only one of its program.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts allocations and reallocations.
#[derive(Debug)]
pub struct AllocationCounter;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Number of allocations in this process so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Number of allocations in this thread so far.
pub fn allocations_of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

fn count() {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    OF_THREAD.with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for AllocationCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
