//! `mmap` and its like. Private anonymous memory that is to be read and written lies in the arena, if there is enough of it; what else is mapped is the kernel's.
//!
//! The C library's own calls do not come here: stacks, libraries and its small allocations are not touched.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{off_t, size_t};
use netram_proto::limit::PAGE_BYTES;

use super::{CHILD, HEAP, PROTECTED, give, heap_for, heap_of, refuse, remark};
use crate::heap::Heap;

const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// With one of these a mapping is no plain memory.
const SPECIAL: c_int = libc::MAP_SHARED
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | FIXED
    | LOW;
const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
#[cfg(target_arch = "x86_64")]
const LOW: c_int = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: c_int = 0;
const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let plain = flags & PLAIN == PLAIN && flags & SPECIAL == 0 && protection == READ_WRITE;
    if let Some(heap) = heap_for(bytes).filter(|_| plain) {
        let start = heap.take_pages(bytes, 1);
        return as_pointer(start.map_or_else(|| refuse(libc::ENOMEM), |start| start as c_long));
    }
    if flags & FIXED != 0
        && let Some(heap) = touched(address, bytes)
    {
        return as_pointer(map_over(heap, address, bytes, protection, flags));
    }
    // SAFETY: the program called it with these, and nothing of the arena is replaced.
    as_pointer(unsafe { libc::syscall(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the program called it with these.
    unsafe { mmap(address, bytes, protection, flags, fd, offset) }
}

/// A mapping at addresses of the arena. Plain memory in place of plain memory makes zeros of it, as allocators do to give memory back; nothing
/// else may lie among pages that come and go.
fn map_over(heap: &Heap, address: *mut c_void, bytes: usize, protection: c_int, flags: c_int) -> c_long {
    if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
        return refuse(libc::EEXIST);
    }
    let wanted = span(address, bytes);
    let all = heap.addresses();
    let inside = wanted.start >= all.start && wanted.end <= all.end && heap.has_all(wanted.clone());
    if !inside || flags & PLAIN != PLAIN || flags & (SPECIAL & !FIXED) != 0 || CHILD.load(Ordering::Relaxed) {
        remark(&"the program maps something over its far memory, which is refused");
        return refuse(libc::EINVAL);
    }
    heap.empty(wanted);
    // SAFETY: plain memory of the program's.
    match unsafe { mprotect(address, bytes, protection) } {
        0 => address.expose_provenance() as c_long,
        _ => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let is_valid = bytes > 0 && address.addr().is_multiple_of(PAGE_BYTES);
    let Some(heap) = touched(address, bytes).filter(|_| is_valid) else {
        // SAFETY: the program called it with these, and nothing of the arena is unmapped.
        return unsafe { libc::syscall(libc::SYS_munmap, address, bytes) } as c_int;
    };
    let (wanted, all) = (span(address, bytes), heap.addresses());
    let (start, end) = (wanted.start.max(all.start), wanted.end.min(all.end));
    give(heap, start..end);
    let mut failed = 0;
    for rest in [wanted.start..start, end..wanted.end] {
        if !rest.is_empty() {
            // SAFETY: the program called it with these, and they are outside of the arena.
            failed |= unsafe { libc::syscall(libc::SYS_munmap, rest.start, rest.len()) };
        }
    }
    failed as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    had: size_t,
    bytes: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    if let Some(heap) = heap_of(old) {
        return as_pointer(move_far(heap, old, had, bytes, flags));
    }
    if fixed && touched(new, bytes).is_some() {
        remark(&"the program moves a mapping over its far memory, which is refused");
        return as_pointer(refuse(libc::EINVAL));
    }
    // SAFETY: the program called it with these, and nothing of the arena is moved or replaced.
    as_pointer(unsafe { libc::syscall(libc::SYS_mremap, old, had, bytes, flags, new) })
}

/// Memory of the arena that is to have another size.
fn move_far(heap: &Heap, old: *mut c_void, had: usize, bytes: usize, flags: c_int) -> c_long {
    let start = old.addr();
    let old_span = span(old, had);
    let valid =
        start.is_multiple_of(PAGE_BYTES) && had > 0 && bytes > 0 && flags & !libc::MREMAP_MAYMOVE == 0;
    if !valid || CHILD.load(Ordering::Relaxed) || !heap.has_all(old_span.clone()) {
        return refuse(libc::EINVAL);
    }
    let new_span = span(old, bytes);
    if new_span.end <= old_span.end {
        give(heap, new_span.end..old_span.end);
        return start as c_long;
    }
    // Only who has all of a run can get more where it ends.
    if heap.bytes(start) == Some(old_span.len()) && heap.resize(start, bytes) {
        return start as c_long;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return refuse(libc::ENOMEM);
    }
    let Some(target) = heap.take_pages(bytes, 1) else {
        return refuse(libc::ENOMEM);
    };
    let new = ptr::with_exposed_provenance_mut::<u8>(target);
    // SAFETY: the program has so many bytes there, and the new ones are more, and nobody's yet.
    unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new, old_span.len()) };
    give(heap, old_span);
    target as c_long
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    if protection != READ_WRITE && touched(address, bytes).is_some() {
        PROTECTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the program called it with these. What it may not touch any more is not touched here either.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let advice = match touched(address, bytes) {
        None => Some(advice),
        Some(_) => advice_for(advice),
    };
    match advice {
        // SAFETY: the program called it with these; what it throws away, a thread of the arena is told.
        Some(advice) => unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) as c_int },
        None => 0,
    }
}

/// What the kernel is to be told of the arena in place of this advice. `None`: nothing.
fn advice_for(advice: c_int) -> Option<c_int> {
    match advice {
        // What may be thrown away later is thrown away now: pages that come back by themselves would not count against the cap.
        libc::MADV_FREE => Some(libc::MADV_DONTNEED),
        // Which pages are here, in what size, and what a child gets is the arena's affair.
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_WILLNEED
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTFORK
        | libc::MADV_DOFORK
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => None,
        libc::MADV_DONTNEED => Some(advice),
        // Refused, and programs have a way without it.
        _ => Some(INVALID_ADVICE),
    }
}

/// No advice: the kernel refuses it.
const INVALID_ADVICE: c_int = -1;

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(address: *const c_void, bytes: size_t) -> c_int {
    if touched(address, bytes).is_some() {
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program called it with these.
    unsafe { libc::syscall(libc::SYS_mlock, address, bytes) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(address: *const c_void, bytes: size_t, flags: libc::c_uint) -> c_int {
    if touched(address, bytes).is_some() {
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program called it with these.
    unsafe { libc::syscall(libc::SYS_mlock2, address, bytes, flags) as c_int }
}

/// All memory cannot be kept here: that is what the program is run for.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if HEAP.get().is_some() && !CHILD.load(Ordering::Relaxed) {
        remark(&"the program may not lock all its memory: a part of it lies elsewhere");
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program called it with this.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}

/// The heap, if any of these addresses lies in it.
fn touched(address: *const c_void, bytes: usize) -> Option<&'static Heap> {
    let wanted = span(address, bytes);
    HEAP.get().filter(|heap| {
        let all = heap.addresses();
        wanted.start < all.end && all.start < wanted.end
    })
}

/// Addresses up to the next page.
fn span(address: *const c_void, bytes: usize) -> Range<usize> {
    let end = address.addr().saturating_add(bytes);
    address.addr()..end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end)
}

fn as_pointer(returned: c_long) -> *mut c_void {
    ptr::with_exposed_provenance_mut(returned as usize)
}
