//! `mmap` and its like. Private anonymous memory that is to be read and written lies in the arena, if there
//! is enough of it; what else is mapped is the kernel's.
//!
//! The C library's own calls do not come here: stacks, libraries and its small allocations are not touched.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{off_t, size_t};
use netram_far_machine::limit::PAGE_BYTES;

use super::remap::{self, MmapRequest, RemapRequest};
use super::{CHILD, HEAP, PROTECTED, heap_for, refuse, remark};
use crate::heap::PreloadHeap;

pub(super) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// With one of these a mapping is no plain memory.
pub(super) const SPECIAL: c_int = libc::MAP_SHARED
    | libc::MAP_STACK
    | libc::MAP_GROWSDOWN
    | libc::MAP_HUGETLB
    | libc::MAP_LOCKED
    | FIXED
    | LOW;
pub(super) const FIXED: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
#[cfg(target_arch = "x86_64")]
const LOW: c_int = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const LOW: c_int = 0;
pub(super) const PLAIN: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// More the C library and the kernel give nobody.
pub(super) const BYTES_MAX: usize = isize::MAX as usize;

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
        let start = match bytes {
            // The kernel refuses it, too.
            0..=BYTES_MAX => heap.take_pages(bytes, 1),
            _ => None,
        };
        return as_pointer(start.map_or_else(|| refuse(libc::ENOMEM), |start| start as c_long));
    }
    if flags & FIXED != 0
        && let Some(heap) = far_at(address, bytes)
    {
        let wanted = MmapRequest {
            protection,
            flags,
            fd,
            offset,
        };
        return as_pointer(remap::map(heap, address, bytes, &wanted));
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

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    match touched(address, bytes) {
        Some(heap) => remap::unmap(heap, address, bytes),
        // SAFETY: the program called it with these, and nothing of the arena is unmapped.
        None => unsafe { libc::syscall(libc::SYS_munmap, address, bytes) as c_int },
    }
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
    let wanted = RemapRequest {
        old,
        had,
        bytes,
        flags,
        new,
    };
    let source = touched(old, had);
    let target = touched(new, bytes).filter(|_| fixed);
    as_pointer(match source.or(target) {
        Some(heap) => remap::resize(heap, &wanted),
        None => wanted.by_kernel(),
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    if protection != READ_WRITE && far_at(address, bytes).is_some() {
        PROTECTED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the program called it with these. What it may not touch any more is not touched here either.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let advice = match far_at(address, bytes).filter(|heap| !remap::is_lent(heap, address, bytes)) {
        None => Some(advice),
        // What is no page's beginning the kernel refuses, whatever the advice.
        Some(_) if !address.addr().is_multiple_of(PAGE_BYTES) => Some(INVALID_ADVICE),
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
        // What may be thrown away later is thrown away now: pages that come back by themselves would not
        // count against the cap.
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
    if far_at(address, bytes).is_some() {
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program called it with these.
    unsafe { libc::syscall(libc::SYS_mlock, address, bytes) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(address: *const c_void, bytes: size_t, flags: libc::c_uint) -> c_int {
    if far_at(address, bytes).is_some() {
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
fn touched(address: *const c_void, bytes: usize) -> Option<&'static PreloadHeap> {
    let start = address.addr();
    let end = start.saturating_add(bytes);
    HEAP.get().filter(|heap| {
        let all = heap.addresses();
        start < all.end && all.start < end
    })
}

/// The same, in the process that has the arena. In a child the kernel has all of it.
fn far_at(address: *const c_void, bytes: usize) -> Option<&'static PreloadHeap> {
    touched(address, bytes).filter(|_| !CHILD.load(Ordering::Relaxed))
}

fn as_pointer(returned: c_long) -> *mut c_void {
    ptr::with_exposed_provenance_mut(returned as usize)
}
