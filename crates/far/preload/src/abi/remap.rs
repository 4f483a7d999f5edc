//! Mappings made, removed and moved at addresses of the arena. Plain memory there belongs to the arena. For
//! any other mapping the addresses are *lent* to the kernel from then on.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::off_t;
use netram_far_machine::limit::PAGE_BYTES;

use super::maps::{BYTES_MAX, FIXED, PLAIN, READ_WRITE, SPECIAL};
use super::{CHILD, PROTECTED, give, refuse, remark};
use crate::heap::PreloadHeap;

/// Attempts to find memory that another thread is just freeing, which takes some 20 µs.
const TRIES: usize = 10_000;

/// Arguments of a mapping.
pub(super) struct MmapRequest {
    pub(super) protection: c_int,
    pub(super) flags: c_int,
    pub(super) fd: c_int,
    pub(super) offset: off_t,
}

impl MmapRequest {
    fn by_kernel(&self, address: usize, bytes: usize, flags: c_int) -> c_long {
        // SAFETY: the program requested it, and of the arena only lent or abandoned addresses are replaced.
        unsafe {
            libc::syscall(
                libc::SYS_mmap,
                address,
                bytes,
                self.protection,
                flags,
                self.fd,
                self.offset,
            )
        }
    }
}

/// Makes a mapping at addresses of the arena. Plain memory is zeros and replaces what was there or fills a
/// hole.
pub(super) fn map(heap: &PreloadHeap, address: *mut c_void, bytes: usize, wanted: &MmapRequest) -> c_long {
    let Some(span) = span(address, bytes) else {
        // No such mapping is possible; the kernel returns the reason.
        return wanted.by_kernel(address.addr(), bytes, wanted.flags);
    };
    let all = heap.addresses();
    let inside = span.start >= all.start && span.end <= all.end;
    let keeps = wanted.flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    if keeps && !(inside && heap.are_free(&span)) {
        return refuse(libc::EEXIST);
    }
    if !inside {
        remark(&"the program maps memory across a boundary of its far memory, which is refused");
        return refuse(libc::EINVAL);
    }
    if wanted.flags & PLAIN == PLAIN && wanted.flags & (SPECIAL & !FIXED) == 0 {
        return map_plain(heap, &span, wanted);
    }
    // Map elsewhere first, so that a refusal by the kernel changes nothing here.
    let mapped = wanted.by_kernel(0, bytes, wanted.flags & !FIXED);
    if mapped == -1 {
        return -1;
    }
    if !claim(heap, &span) {
        // SAFETY: it was just mapped, and nothing refers to it.
        unsafe { libc::syscall(libc::SYS_munmap, mapped, bytes) };
        return refuse(libc::ENOMEM);
    }
    move_in(heap, mapped as usize, bytes, bytes, &span)
}

fn map_plain(heap: &PreloadHeap, span: &Range<usize>, wanted: &MmapRequest) -> c_long {
    if !claim(heap, span) {
        return refuse(libc::ENOMEM);
    }
    if wanted.protection != READ_WRITE {
        PROTECTED.store(true, Ordering::Relaxed);
    }
    let mut done = 0;
    each_part(heap, span.clone(), |part, lent| {
        done |= match lent {
            true => wanted.by_kernel(part.start, part.len(), wanted.flags).min(0),
            false if !PROTECTED.load(Ordering::Relaxed) => 0,
            false => protect(&part, wanted.protection),
        };
    });
    if done == 0 { span.start as c_long } else { -1 }
}

/// Claims all of the range that is not lent, as zeros.
fn claim(heap: &PreloadHeap, span: &Range<usize>) -> bool {
    let mut all = true;
    each_part(heap, span.clone(), |part, lent| {
        let claimed = || {
            let claimed = heap.claim(part.clone());
            if !claimed {
                std::thread::yield_now();
            }
            claimed
        };
        all &= lent || (0..TRIES).any(|_| claimed());
    });
    all
}

/// Moves a mapping of the kernel's to claimed addresses.
fn move_in(heap: &PreloadHeap, mapped: usize, had: usize, bytes: usize, span: &Range<usize>) -> c_long {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the moved mapping is the program's, and nothing is at its destination.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, mapped, had, bytes, flags, span.start) };
    if moved != -1 {
        heap.lend(span.clone());
    }
    moved
}

pub(super) fn unmap(heap: &PreloadHeap, address: *mut c_void, bytes: usize) -> c_int {
    let Some(wanted) = span(address, bytes) else {
        return refuse(libc::EINVAL) as c_int;
    };
    let all = heap.addresses();
    let (start, end) = (wanted.start.max(all.start), wanted.end.min(all.end));
    // Outside of the arena first, so that a refusal by the kernel (a range beyond all addresses) changes
    // nothing here.
    for rest in [end..wanted.end, wanted.start..start] {
        // SAFETY: the program passed these arguments, and the range is outside of the arena.
        if !rest.is_empty() && unsafe { libc::syscall(libc::SYS_munmap, rest.start, rest.len()) } != 0 {
            return -1;
        }
    }
    let mut failed = 0;
    each_part(heap, start..end, |part, lent| {
        if lent || CHILD.load(Ordering::Relaxed) {
            failed |= reserve(&part, libc::MAP_FIXED);
        } else {
            give(heap, part);
        }
    });
    failed as c_int
}

/// Arguments of `mremap`.
pub(super) struct RemapRequest {
    pub(super) old: *mut c_void,
    pub(super) had: usize,
    pub(super) bytes: usize,
    pub(super) flags: c_int,
    pub(super) new: *mut c_void,
}

impl RemapRequest {
    pub(super) fn by_kernel(&self) -> c_long {
        let RemapRequest {
            old,
            had,
            bytes,
            flags,
            new,
        } = *self;
        // SAFETY: the program passed these arguments, and of the arena only lent addresses are moved or
        // replaced.
        unsafe { libc::syscall(libc::SYS_mremap, old, had, bytes, flags, new) }
    }

    fn is_fixed(&self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0
    }
}

/// Resizes or moves a mapping that is in the arena or goes there.
pub(super) fn resize(heap: &PreloadHeap, wanted: &RemapRequest) -> c_long {
    let known = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let moves = wanted.flags & libc::MREMAP_MAYMOVE != 0;
    let stays = wanted.flags & libc::MREMAP_DONTUNMAP != 0;
    let (Some(old), Some(size)) = (
        span(wanted.old, wanted.had),
        span(ptr::without_provenance_mut(PAGE_BYTES), wanted.bytes),
    ) else {
        return refuse(libc::EINVAL);
    };
    if u32::try_from(size.len() / PAGE_BYTES).is_err() {
        return refuse_size(wanted);
    }
    let valid = wanted.flags & !known == 0 && (moves || !wanted.is_fixed() && !stays);
    if !valid || stays && old.len() != size.len() {
        return refuse(libc::EINVAL);
    }
    if wanted.is_fixed() {
        let Some(new) = span(wanted.new, wanted.bytes) else {
            return refuse(libc::EINVAL);
        };
        if new.start < old.end && old.start < new.end {
            return refuse(libc::EINVAL);
        }
        return move_to(heap, wanted, old, new);
    }
    if is_kernels(heap, &old) {
        return by_kernel(heap, wanted, &old);
    }
    if !heap.has_all(old.clone()) {
        return refuse(libc::EFAULT);
    }
    if !stays && size.len() <= old.len() {
        give(heap, old.start + size.len()..old.end);
        return old.start as c_long;
    }
    // Only the owner of a whole run can extend it in place.
    if !stays && heap.bytes(old.start) == Some(old.len()) && heap.resize(old.start, size.len()) {
        return old.start as c_long;
    }
    let target = match moves && size.len() <= BYTES_MAX {
        true => heap.take_pages(size.len(), 1),
        false => None,
    };
    match target {
        Some(target) => carry(heap, &old, target..target + size.len(), stays),
        None => refuse(libc::ENOMEM),
    }
}

/// Refuses a size that no arena can have, with the error that the kernel gives for any mapping.
fn refuse_size(wanted: &RemapRequest) -> c_long {
    let plain = MmapRequest {
        protection: libc::PROT_NONE,
        flags: PLAIN,
        fd: -1,
        offset: 0,
    };
    let page = plain.by_kernel(0, PAGE_BYTES, PLAIN);
    if page == -1 {
        return -1;
    }
    let other = RemapRequest {
        old: ptr::with_exposed_provenance_mut(page as usize),
        had: PAGE_BYTES,
        ..*wanted
    };
    let resized = other.by_kernel();
    let (left, bytes) = match resized {
        -1 => (page, PAGE_BYTES),
        resized => (resized, wanted.bytes),
    };
    let error = super::errno();
    // SAFETY: it was just mapped, and nothing refers to it.
    unsafe { libc::syscall(libc::SYS_munmap, left, bytes) };
    refuse(if resized == -1 { error } else { libc::ENOMEM })
}

/// Moves a mapping to an address that the program names.
fn move_to(heap: &PreloadHeap, wanted: &RemapRequest, old: Range<usize>, new: Range<usize>) -> c_long {
    let all = heap.addresses();
    let is_far = |span: &Range<usize>| span.start < all.end && all.start < span.end;
    let inside = new.start >= all.start && new.end <= all.end;
    if is_far(&new) && !inside {
        remark(&"the program moves a mapping across a boundary of its far memory, which is refused");
        return refuse(libc::EINVAL);
    }
    if is_kernels(heap, &old) {
        if inside && !CHILD.load(Ordering::Relaxed) && !claim(heap, &new) {
            return refuse(libc::ENOMEM);
        }
        let moved = by_kernel(heap, wanted, &old);
        if moved != -1 && inside && !CHILD.load(Ordering::Relaxed) {
            heap.lend(new);
        }
        return moved;
    }
    if !heap.has_all(old.clone()) {
        return refuse(libc::EFAULT);
    }
    let plain = MmapRequest {
        protection: READ_WRITE,
        flags: PLAIN | libc::MAP_FIXED | libc::MAP_NORESERVE,
        fd: -1,
        offset: 0,
    };
    let mapped = match inside {
        true => map_plain(heap, &new, &plain),
        false => plain.by_kernel(new.start, new.len(), plain.flags),
    };
    match mapped {
        -1 => -1,
        _ => carry(heap, &old, new, wanted.flags & libc::MREMAP_DONTUNMAP != 0),
    }
}

/// Moves content to claimed addresses. The old addresses become zeros (`stays`) or are freed.
fn carry(heap: &PreloadHeap, old: &Range<usize>, new: Range<usize>, stays: bool) -> c_long {
    let bytes = old.len().min(new.len());
    if PROTECTED.load(Ordering::Relaxed) && protect(&(old.start..old.start + bytes), READ_WRITE) != 0 {
        give(heap, new);
        return -1;
    }
    let source = ptr::with_exposed_provenance::<u8>(old.start);
    let target = ptr::with_exposed_provenance_mut::<u8>(new.start);
    // SAFETY: the program owns that many bytes at both places, which do not overlap.
    unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
    match stays {
        true => heap.empty(old.clone()),
        false => give(heap, old.clone()),
    }
    new.start as c_long
}

/// Has the kernel move its own mapping, and reserves the addresses it leaves.
fn by_kernel(heap: &PreloadHeap, wanted: &RemapRequest, old: &Range<usize>) -> c_long {
    let moved = wanted.by_kernel();
    let all = heap.addresses();
    let left = match moved {
        -1 => 0..0,
        at if at as usize != old.start => old.clone(),
        _ => (old.start + wanted.bytes.next_multiple_of(PAGE_BYTES)).min(old.end)..old.end,
    };
    let left = left.start.max(all.start)..left.end.min(all.end);
    if !left.is_empty() {
        // A mapping made there in between stays.
        reserve(&left, libc::MAP_FIXED_NOREPLACE);
    }
    moved
}

/// Whether no part of the range belongs to the arena.
fn is_kernels(heap: &PreloadHeap, span: &Range<usize>) -> bool {
    let all = heap.addresses();
    let is_far = span.start < all.end && all.start < span.end;
    !is_far || CHILD.load(Ordering::Relaxed) || heap.next_lent(span).as_ref() == Some(span)
}

/// Whether the whole range is lent.
pub(super) fn is_lent(heap: &PreloadHeap, address: *const c_void, bytes: usize) -> bool {
    let all = heap.addresses();
    span(address.cast_mut(), bytes).is_some_and(|span| {
        span.start >= all.start && span.end <= all.end && heap.next_lent(&span).as_ref() == Some(&span)
    })
}

/// Calls `what` for each lent and each other part of the range.
pub(super) fn each_part(heap: &PreloadHeap, span: Range<usize>, mut what: impl FnMut(Range<usize>, bool)) {
    let mut next = span;
    while !next.is_empty() {
        let lent = heap.next_lent(&next).unwrap_or(next.end..next.end);
        if next.start < lent.start {
            what(next.start..lent.start, false);
        }
        if !lent.is_empty() {
            what(lent.clone(), true);
        }
        next.start = lent.end;
    }
}

/// Reserves addresses, so that nothing is mapped there.
pub(super) fn reserve(part: &Range<usize>, fixed: c_int) -> c_long {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let (start, bytes) = (part.start, part.len());
    // SAFETY: the caller has given up anything that is replaced.
    unsafe { libc::syscall(libc::SYS_mmap, start, bytes, libc::PROT_NONE, flags, -1, 0) }.min(0)
}

fn protect(part: &Range<usize>, protection: c_int) -> c_long {
    // SAFETY: memory of the program.
    unsafe { libc::syscall(libc::SYS_mprotect, part.start, part.len(), protection) }
}

/// The range in whole pages. `None`: it is not aligned, or ends beyond all addresses.
fn span(address: *mut c_void, bytes: usize) -> Option<Range<usize>> {
    let start = address.addr();
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    let valid = bytes > 0 && start.is_multiple_of(PAGE_BYTES);
    Some(start..start.checked_add(bytes)?).filter(|_| valid)
}
