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
//! A test that counts the whole process is the only one of its program. The process's first thread is left
//! out unless it counts itself: there the harness keeps its books, at any moment.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, which counts allocations and reallocations.
#[derive(Debug)]
pub struct AllocationCounter;

static OF_FIRST: AtomicU64 = AtomicU64::new(0);
static OF_OTHERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
    static IS_FIRST: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Number of allocations in this process so far, without those of its first thread unless this is it.
pub fn allocations() -> u64 {
    let others = OF_OTHERS.load(Ordering::Relaxed);
    match is_first() {
        true => others + OF_FIRST.load(Ordering::Relaxed),
        false => others,
    }
}

/// Number of allocations in this thread so far.
pub fn allocations_of_thread() -> u64 {
    OF_THREAD.with(Cell::get)
}

/// Whether this is the thread that the process began with.
fn is_first() -> bool {
    IS_FIRST.with(|known| match known.get() {
        Some(first) => first,
        None => {
            let first = rustix::thread::gettid() == rustix::process::getpid();
            known.set(Some(first));
            first
        }
    })
}

fn count() {
    match is_first() {
        true => OF_FIRST.fetch_add(1, Ordering::Relaxed),
        false => OF_OTHERS.fetch_add(1, Ordering::Relaxed),
    };
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
