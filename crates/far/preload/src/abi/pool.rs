//! A pool for memory that the C library allocates on behalf of the arena's threads, if the program has
//! another allocator. That allocator's memory is in the arena, and a thread that serves the arena must not
//! need it.
//!
//! Blocks are powers of two, each after a header of 16 bytes with its class. Only threads of the arena
//! allocate here; any thread may free, without a lock.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::next_allocator::is_foreign;
use super::{CHILD, own_allocator};

/// Size of the pool. Looking up a name takes some 100 KiB for a moment.
const POOL_BYTES: usize = 16 << 20;
/// Maximum number of an arena's threads: handlers, dialers and a few others.
const THREADS_MAX: usize = 128;
const SMALLEST_BYTES: usize = 32;
/// Classes up to 1 MiB.
const CLASSES: usize = 16;
const HEAD_BYTES: usize = 16;

/// Header of a block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    /// Address of the block's memory.
    start: usize,
    class: usize,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// Free blocks. A free block begins with the address of the next one.
struct Free {
    /// No block was ever allocated from this address on.
    top: usize,
    first: [usize; CLASSES],
}

static FREE: Mutex<Free> = Mutex::new(Free {
    top: 0,
    first: [0; CLASSES],
});
/// Lists of blocks freed since the last allocation of their class.
static GIVEN: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];
/// Address of the pool; 0: the program uses the C library's allocator, and no pool is needed.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// The arena's threads, by the address of the C library's data about each.
static THREADS: [AtomicUsize; THREADS_MAX] = [const { AtomicUsize::new(0) }; THREADS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Maps the pool, before there is a second thread.
pub(super) fn open() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory at an address of the kernel's choice.
    let made = unsafe { libc::syscall(libc::SYS_mmap, 0, POOL_BYTES, protection, flags, -1, 0) };
    if made == -1 {
        super::die(&"there is no memory for the threads of far memory");
    }
    let base = made as usize;
    FREE.lock().unwrap_or_else(PoisonError::into_inner).top = base;
    BASE.store(base, Ordering::Release);
}

/// Registers the calling thread as one of the arena's.
pub(crate) fn enlist() {
    let this = this_thread();
    if let Some(place) = THREADS.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
        place.store(this, Ordering::Relaxed);
        LOWEST.fetch_min(this, Ordering::Relaxed);
        HIGHEST.fetch_max(this, Ordering::Relaxed);
    }
}

/// Whether the calling thread allocates here. Costs 1 ns for other threads.
pub(super) fn serves() -> bool {
    if !is_foreign() || BASE.load(Ordering::Relaxed) == 0 || CHILD.load(Ordering::Relaxed) {
        return false;
    }
    let this = this_thread();
    let near = (LOWEST.load(Ordering::Relaxed)..=HIGHEST.load(Ordering::Relaxed)).contains(&this);
    near && THREADS
        .iter()
        .any(|thread| thread.load(Ordering::Relaxed) == this)
}

fn this_thread() -> usize {
    // SAFETY: `pthread_self` has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// Whether a block is in the pool.
pub(super) fn owns(block: *const c_void) -> bool {
    let base = BASE.load(Ordering::Acquire);
    base != 0 && (base..base + POOL_BYTES).contains(&block.addr())
}

/// Allocates a block. Null: the pool has none of that size.
pub(super) fn take(bytes: usize, align: usize) -> *mut c_void {
    let align = align.max(own_allocator::ALIGN);
    let slack = if align > own_allocator::ALIGN { align } else { 0 };
    let needed = bytes.saturating_add(HEAD_BYTES + slack);
    let fits = |class: &usize| SMALLEST_BYTES << class >= needed;
    let Some(class) = (0..CLASSES).find(fits) else {
        return super::alloc::no_memory();
    };
    let Some(start) = take_start(class) else {
        return super::alloc::no_memory();
    };
    let block = (start + HEAD_BYTES).next_multiple_of(align);
    let head = ptr::with_exposed_provenance_mut::<Head>(block - HEAD_BYTES);
    // SAFETY: within a block that has no other owner, aligned.
    unsafe { head.write(Head { start, class }) };
    ptr::with_exposed_provenance_mut(block)
}

/// Allocates a block of zeros.
pub(super) fn take_zeros(bytes: usize) -> *mut c_void {
    let block = take(bytes, own_allocator::ALIGN);
    if !block.is_null() {
        // SAFETY: it has that many bytes and no other owner.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    block
}

fn take_start(class: usize) -> Option<usize> {
    // No code panics under this lock.
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.first[class] == 0 {
        free.first[class] = GIVEN[class].swap(0, Ordering::Acquire);
    }
    let first = free.first[class];
    if first != 0 {
        // SAFETY: a free block begins with this link, and only the holder of the lock takes one.
        free.first[class] = unsafe { ptr::with_exposed_provenance::<usize>(first).read() };
        return Some(first);
    }
    let end = BASE.load(Ordering::Relaxed) + POOL_BYTES;
    let bytes = SMALLEST_BYTES << class;
    let start = free.top;
    (start + bytes <= end).then(|| {
        free.top += bytes;
        start
    })
}

/// Frees a block, from any thread.
pub(super) fn give(block: *mut c_void) {
    let Head { start, class } = head(block);
    let link = ptr::with_exposed_provenance_mut::<usize>(start);
    let mut first = GIVEN[class].load(Ordering::Relaxed);
    loop {
        // SAFETY: the block was freed and is not in a list yet, so it has no owner.
        unsafe { link.write(first) };
        match GIVEN[class].compare_exchange_weak(first, start, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// Usable bytes of a block.
pub(super) fn usable(block: *const c_void) -> usize {
    let Head { start, class } = head(block);
    start + (SMALLEST_BYTES << class) - block.addr()
}

fn head(block: *const c_void) -> Head {
    // SAFETY: a header precedes every block.
    unsafe { ptr::with_exposed_provenance::<Head>(block.addr() - HEAD_BYTES).read() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn blocks_are_aligned_disjoint_and_reused() {
        open();
        assert!(owns(take(0, 1)) && !owns((&raw const BASE).cast()));
        let aligns = [1, 16, 64, 4096];
        let sizes = [0, 1, 16, 17, 4000, 100_000];
        let mut ends = BTreeSet::new();
        let mut blocks = Vec::new();
        for (align, bytes) in aligns.iter().flat_map(|align| sizes.map(|bytes| (*align, bytes))) {
            let block = take(bytes, align);
            assert!(block.addr().is_multiple_of(align.max(own_allocator::ALIGN)));
            let end = block.addr() + usable(block);
            assert!(usable(block) >= bytes);
            // SAFETY: it has that many bytes.
            unsafe { ptr::write_bytes(block.cast::<u8>(), 7, usable(block)) };
            assert!(
                ends.range(block.addr() + 1..=end).next().is_none(),
                "blocks do not overlap"
            );
            ends.insert(end);
            blocks.push((block.expose_provenance(), bytes, align));
        }
        let start = |block: usize| head(ptr::with_exposed_provenance(block)).start;
        let all: BTreeSet<usize> = blocks.iter().map(|block| start(block.0)).collect();
        let given = blocks.clone();
        std::thread::spawn(move || {
            for (block, ..) in given {
                give(ptr::with_exposed_provenance_mut(block));
            }
        })
        .join()
        .unwrap();
        let taken =
            |(_, bytes, align): &(usize, usize, usize)| start(take(*bytes, *align).expose_provenance());
        let again = blocks.iter().map(taken).filter(|start| all.contains(start));
        assert_eq!(again.count(), blocks.len());
        let block = take_zeros(100_000);
        // SAFETY: it has that many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), 100_000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(take(POOL_BYTES, 1).is_null() && take(usize::MAX, 1).is_null());
    }
}
