//! `mmap` and the other mapping functions. Private anonymous memory for reading and writing is in the arena
//! if it is large enough; other mappings are the kernel's.
//!
//! The C library's own calls do not come here: stacks, libraries and its small allocations are unaffected.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use libc::{off_t, size_t};
use netram_far_machine::limit::PAGE_BYTES;

use super::remap::{self, MmapRequest, RemapRequest};
use super::{CHILD, HEAP, PROTECTED, heap_for, refuse, remark};
use crate::heap::PreloadHeap;

pub(super) const READ_WRITE: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Flags that make a mapping other than plain memory.
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

/// Maximum size that the C library and the kernel allow.
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
            // The kernel refuses larger sizes, too.
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
    // SAFETY: the program passed these arguments, and nothing of the arena is replaced.
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
    // SAFETY: the program passed these arguments.
    unsafe { mmap(address, bytes, protection, flags, fd, offset) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    match touched(address, bytes) {
        Some(heap) => remap::unmap(heap, address, bytes),
        // SAFETY: the program passed these arguments, and nothing of the arena is unmapped.
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
    // SAFETY: the program passed these arguments. Memory that becomes inaccessible is not touched here
    // either.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let advice = match far_at(address, bytes).filter(|heap| !remap::is_lent(heap, address, bytes)) {
        None => Some(advice),
        // The kernel refuses an unaligned address with any advice.
        Some(_) if !address.addr().is_multiple_of(PAGE_BYTES) => Some(INVALID_ADVICE),
        Some(_) => advice_for(advice),
    };
    match advice {
        // SAFETY: the program passed these arguments; a thread of the arena is told of discarded pages.
        Some(advice) => unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) as c_int },
        None => 0,
    }
}

/// Advice to give the kernel about the arena in place of this one. `None`: none.
fn advice_for(advice: c_int) -> Option<c_int> {
    match advice {
        // Memory that may be discarded later is discarded now: otherwise its pages would come back without
        // counting against the cap.
        libc::MADV_FREE => Some(libc::MADV_DONTNEED),
        // The arena decides which pages are local, in what size, and what a child gets.
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
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT => None,
        // Whether a page is in a core dump is the program's to say: it may hold secrets. Staging frames are
        // in none.
        libc::MADV_DONTNEED | libc::MADV_DONTDUMP | libc::MADV_DODUMP => Some(advice),
        // Refused; programs can do without.
        _ => Some(INVALID_ADVICE),
    }
}

/// An invalid advice, which the kernel refuses.
const INVALID_ADVICE: c_int = -1;

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock(address: *const c_void, bytes: size_t) -> c_int {
    if far_at(address, bytes).is_some() {
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program passed these arguments.
    unsafe { libc::syscall(libc::SYS_mlock, address, bytes) as c_int }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlock2(address: *const c_void, bytes: size_t, flags: libc::c_uint) -> c_int {
    if far_at(address, bytes).is_some() {
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program passed these arguments.
    unsafe { libc::syscall(libc::SYS_mlock2, address, bytes, flags) as c_int }
}

/// Refuses to lock all memory, which is to be larger than the local memory.
#[unsafe(no_mangle)]
unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if HEAP.get().is_some() && !CHILD.load(Ordering::Relaxed) {
        remark(&"mlockall is refused, because a part of the program's memory is remote");
        return refuse(libc::ENOMEM) as c_int;
    }
    // SAFETY: the program passed this argument.
    unsafe { libc::syscall(libc::SYS_mlockall, flags) as c_int }
}

/// The heap, if any of these addresses is in it.
fn touched(address: *const c_void, bytes: usize) -> Option<&'static PreloadHeap> {
    let start = address.addr();
    let end = start.saturating_add(bytes);
    HEAP.get().filter(|heap| {
        let all = heap.addresses();
        start < all.end && all.start < end
    })
}

/// As `touched`, only in the process with the arena. In a child the kernel has all of it.
fn far_at(address: *const c_void, bytes: usize) -> Option<&'static PreloadHeap> {
    touched(address, bytes).filter(|_| !CHILD.load(Ordering::Relaxed))
}

fn as_pointer(returned: c_long) -> *mut c_void {
    ptr::with_exposed_provenance_mut(returned as usize)
}
