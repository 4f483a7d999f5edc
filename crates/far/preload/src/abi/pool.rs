//! Memory that the C library takes in the name of a thread of the arena's, where the program has another
//! allocator: that allocator's own memory lies in the arena, and a thread that serves it must not need it.
//!
//! Blocks of powers of two, each behind 16 bytes that tell which it is. Only threads of the arena's take any;
//! anybody gives back, without a lock.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::next_allocator::is_foreign;
use super::{CHILD, own_allocator};

/// All of it. What looks up a name takes some 100 KiB, for a moment.
const POOL_BYTES: usize = 16 << 20;
/// An arena's threads: handlers, dialers, and a few.
const THREADS_MAX: usize = 128;
const SMALLEST_BYTES: usize = 32;
/// Up to 1 MiB.
const CLASSES: usize = 16;
const HEAD_BYTES: usize = 16;

/// What stands in front of a block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    /// Where its memory begins.
    start: usize,
    class: usize,
}

const _: () = assert!(size_of::<Head>() == HEAD_BYTES);

/// What is free. A block that is has the address of the next one at its beginning.
struct Free {
    /// Above it nothing was ever taken.
    top: usize,
    first: [usize; CLASSES],
}

static FREE: Mutex<Free> = Mutex::new(Free {
    top: 0,
    first: [0; CLASSES],
});
/// What was given back since somebody looked.
static GIVEN: [AtomicUsize; CLASSES] = [const { AtomicUsize::new(0) }; CLASSES];
/// Where it begins; 0: the program has the C library's allocator, and needs none.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Who takes memory here, by where the C library has what it knows of each thread.
static THREADS: [AtomicUsize; THREADS_MAX] = [const { AtomicUsize::new(0) }; THREADS_MAX];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Has room made for it, before a second thread is there.
pub(super) fn open() {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: new memory, wherever the kernel has room for it.
    let made = unsafe { libc::syscall(libc::SYS_mmap, 0, POOL_BYTES, protection, flags, -1, 0) };
    if made == -1 {
        super::die(&"the system has no memory for the threads of far memory");
    }
    let base = made as usize;
    FREE.lock().unwrap_or_else(PoisonError::into_inner).top = base;
    BASE.store(base, Ordering::Release);
}

/// The calling thread is one of the arena's.
pub(crate) fn enlist() {
    let this = this_thread();
    if let Some(place) = THREADS.get(COUNT.fetch_add(1, Ordering::Relaxed)) {
        place.store(this, Ordering::Relaxed);
        LOWEST.fetch_min(this, Ordering::Relaxed);
        HIGHEST.fetch_max(this, Ordering::Relaxed);
    }
}

/// Whether the calling thread takes its memory here. 1 ns for others.
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
    // SAFETY: it only tells.
    unsafe { libc::pthread_self() as usize }
}

/// Whether this block is one of it.
pub(super) fn owns(block: *const c_void) -> bool {
    let base = BASE.load(Ordering::Acquire);
    base != 0 && (base..base + POOL_BYTES).contains(&block.addr())
}

/// A block. Null: so much is not here.
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
    // SAFETY: within a block that nobody else has, aligned.
    unsafe { head.write(Head { start, class }) };
    ptr::with_exposed_provenance_mut(block)
}

/// The same, zeros.
pub(super) fn take_zeros(bytes: usize) -> *mut c_void {
    let block = take(bytes, own_allocator::ALIGN);
    if !block.is_null() {
        // SAFETY: it has so many bytes, and is nobody else's.
        unsafe { ptr::write_bytes(block.cast::<u8>(), 0, bytes) };
    }
    block
}

fn take_start(class: usize) -> Option<usize> {
    // Nobody fails under this lock.
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    if free.first[class] == 0 {
        free.first[class] = GIVEN[class].swap(0, Ordering::Acquire);
    }
    let first = free.first[class];
    if first != 0 {
        // SAFETY: a block that is free has this at its beginning, and only who has the lock takes one.
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

/// Takes a block back, from whoever has it.
pub(super) fn give(block: *mut c_void) {
    let Head { start, class } = head(block);
    let link = ptr::with_exposed_provenance_mut::<usize>(start);
    let mut first = GIVEN[class].load(Ordering::Relaxed);
    loop {
        // SAFETY: the block is nobody's any more, and not yet anybody's.
        unsafe { link.write(first) };
        match GIVEN[class].compare_exchange_weak(first, start, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => first = now,
        }
    }
}

/// How many bytes a block has.
pub(super) fn usable(block: *const c_void) -> usize {
    let Head { start, class } = head(block);
    start + (SMALLEST_BYTES << class) - block.addr()
}

fn head(block: *const c_void) -> Head {
    // SAFETY: it stands in front of every block.
    unsafe { ptr::with_exposed_provenance::<Head>(block.addr() - HEAD_BYTES).read() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn blocks_are_aligned_apart_and_used_again_whoever_gave_them_back() {
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
            // SAFETY: it has so many bytes.
            unsafe { ptr::write_bytes(block.cast::<u8>(), 7, usable(block)) };
            assert!(ends.range(block.addr() + 1..=end).next().is_none(), "apart");
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
        // SAFETY: it has so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), 100_000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert!(take(POOL_BYTES, 1).is_null() && take(usize::MAX, 1).is_null());
    }
}
