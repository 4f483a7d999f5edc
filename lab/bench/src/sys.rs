//! The crate's only unsafe module: a counting allocator (the trait `GlobalAlloc` is unsafe), a mapped file,
//! and ignored signals.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    // The cell is const and has no destructor, so reading it never allocates, not even in a thread that is
    // ending.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, which counts while [`count_allocations`] runs. At other times it costs one relaxed
/// load more.
///
/// A program that reports allocations makes it its `#[global_allocator]`.
pub struct CountingAllocator;

/// Allocations during a piece of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCounts {
    /// Allocations of the thread that did the work.
    pub own: u64,
    /// Allocations of all threads of the process.
    pub all: u64,
}

/// Counts allocations, including reallocations, while `work` runs. All counts are zero unless the program's
/// allocator is [`CountingAllocator`]. Only one count may run at a time.
pub fn count_allocations<T>(work: impl FnOnce() -> T) -> (T, AllocationCounts) {
    let before = AllocationCounts {
        own: OWN.get(),
        all: ALLOCATIONS.load(Ordering::Relaxed),
    };
    COUNTS.store(true, Ordering::Relaxed);
    let result = work();
    COUNTS.store(false, Ordering::Relaxed);
    let after = AllocationCounts {
        own: OWN.get(),
        all: ALLOCATIONS.load(Ordering::Relaxed),
    };
    (
        result,
        AllocationCounts {
            own: after.own - before.own,
            all: after.all - before.all,
        },
    )
}

/// Ignores SIGINT and SIGTERM in this process, and in the program that it executes next.
pub(crate) fn ignore_interruptions() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: an ignored signal runs no code, and only numbers are passed.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

fn count() {
    if COUNTS.load(Ordering::Relaxed) {
        OWN.set(OWN.get() + 1);
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged, which upholds the trait's promises; counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the conditions on `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the conditions on `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller got `block` from `alloc` above, hence from the system, with this `layout`.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`; the caller upholds the conditions on `size`.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// A file's bytes as memory, shared with the file.
pub(crate) struct MappedFile {
    first: NonNull<u64>,
    words: usize,
}

impl MappedFile {
    /// Maps the first `words` 8-byte values of a file that is large enough, used by no other process, and not
    /// resized.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses the mapping.
    pub(crate) fn new(file: &File, words: usize) -> io::Result<MappedFile> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses unused addresses.
        let first = unsafe {
            mmap(
                std::ptr::null_mut(),
                words * 8,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(MappedFile { first, words })
    }

    pub(crate) fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: `self.words` values are mapped readable and writable as long as `self` lives, and only
        // `self` reaches them; pages are aligned, and every bit pattern is a value.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.words) }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this range, and no borrow of it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.first.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "it was mapped");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn only_allocations_are_counted() {
        let (boxed, counted) = count_allocations(|| std::hint::black_box(Box::new(7)));
        assert_eq!(counted.own, 1);
        assert!(counted.all >= 1);
        let (_, counted) = count_allocations(|| std::hint::black_box(*boxed + 1));
        assert_eq!(counted.own, 0);
    }
}
