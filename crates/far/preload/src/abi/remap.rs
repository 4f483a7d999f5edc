//! What is mapped, unmapped and moved at addresses of the arena. Plain memory there is the arena's. Whatever
//! else the program maps there is the kernel's, and so are those addresses from then on: they are *lent*.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use libc::off_t;
use netram_far_machine::limit::PAGE_BYTES;

use super::maps::{BYTES_MAX, FIXED, PLAIN, READ_WRITE, SPECIAL};
use super::{CHILD, PROTECTED, give, refuse, remark};
use crate::heap::PreloadHeap;

/// How often memory is looked for that another thread is just giving back: that takes some 20 µs.
const TRIES: usize = 10_000;

/// What is to be mapped.
pub(super) struct MmapRequest {
    pub(super) protection: c_int,
    pub(super) flags: c_int,
    pub(super) fd: c_int,
    pub(super) offset: off_t,
}

impl MmapRequest {
    fn by_kernel(&self, address: usize, bytes: usize, flags: c_int) -> c_long {
        // SAFETY: the program has asked for it, and nothing of the arena is replaced that is not lent or
        // given up.
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

/// A mapping at addresses of the arena. Plain memory there is zeros, in place of what was there or of a hole.
pub(super) fn map(heap: &PreloadHeap, address: *mut c_void, bytes: usize, wanted: &MmapRequest) -> c_long {
    let Some(span) = span(address, bytes) else {
        // It says what is wrong with it: no such mapping can be.
        return wanted.by_kernel(address.addr(), bytes, wanted.flags);
    };
    let all = heap.addresses();
    let inside = span.start >= all.start && span.end <= all.end;
    let keeps = wanted.flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    if keeps && !(inside && heap.are_free(&span)) {
        return refuse(libc::EEXIST);
    }
    if !inside {
        remark(&"the program maps something over an end of its far memory, which is refused");
        return refuse(libc::EINVAL);
    }
    if wanted.flags & PLAIN == PLAIN && wanted.flags & (SPECIAL & !FIXED) == 0 {
        return map_plain(heap, &span, wanted);
    }
    // Elsewhere first: what the kernel refuses changes nothing here.
    let mapped = wanted.by_kernel(0, bytes, wanted.flags & !FIXED);
    if mapped == -1 {
        return -1;
    }
    if !claim(heap, &span) {
        // SAFETY: it was just had, and nobody has seen it.
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

/// Makes all of it the caller's that is not lent, and zeros.
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

/// Moves a mapping of the kernel's to addresses that the caller has claimed.
fn move_in(heap: &PreloadHeap, mapped: usize, had: usize, bytes: usize, span: &Range<usize>) -> c_long {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: what is moved is the program's; where it goes nobody has anything.
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
    // Outside first: what the kernel refuses, for it ends beyond all addresses, changes nothing here.
    for rest in [end..wanted.end, wanted.start..start] {
        // SAFETY: the program called it with these, and they are outside of the arena.
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

/// A mapping that is to have another size, or another place.
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
        // SAFETY: the program called it with these, and nothing of the arena is moved or replaced that is not
        // lent.
        unsafe { libc::syscall(libc::SYS_mremap, old, had, bytes, flags, new) }
    }

    fn is_fixed(&self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0
    }
}

/// One that is in the arena, or goes there.
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
    // Only who has all of a run can get more where it ends.
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

/// A size that no arena can have: the kernel says what it would say of any mapping.
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
    // SAFETY: it was just had, and nobody has seen it.
    unsafe { libc::syscall(libc::SYS_munmap, left, bytes) };
    refuse(if resized == -1 { error } else { libc::ENOMEM })
}

/// To a place that the program names.
fn move_to(heap: &PreloadHeap, wanted: &RemapRequest, old: Range<usize>, new: Range<usize>) -> c_long {
    let all = heap.addresses();
    let is_far = |span: &Range<usize>| span.start < all.end && all.start < span.end;
    let inside = new.start >= all.start && new.end <= all.end;
    if is_far(&new) && !inside {
        remark(&"the program moves a mapping over an end of its far memory, which is refused");
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

/// What the program has in one place goes to another, which is the caller's. Where it was there are zeros, or
/// nothing.
fn carry(heap: &PreloadHeap, old: &Range<usize>, new: Range<usize>, stays: bool) -> c_long {
    let bytes = old.len().min(new.len());
    if PROTECTED.load(Ordering::Relaxed) && protect(&(old.start..old.start + bytes), READ_WRITE) != 0 {
        give(heap, new);
        return -1;
    }
    let source = ptr::with_exposed_provenance::<u8>(old.start);
    let target = ptr::with_exposed_provenance_mut::<u8>(new.start);
    // SAFETY: the program has so many bytes in both places, and they are apart.
    unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
    match stays {
        true => heap.empty(old.clone()),
        false => give(heap, old.clone()),
    }
    new.start as c_long
}

/// The kernel moves what is its own. Where it was nothing else may come to lie.
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
        // Whoever has come there in between stays.
        reserve(&left, libc::MAP_FIXED_NOREPLACE);
    }
    moved
}

/// Nothing of it is the arena's.
fn is_kernels(heap: &PreloadHeap, span: &Range<usize>) -> bool {
    let all = heap.addresses();
    let is_far = span.start < all.end && all.start < span.end;
    !is_far || CHILD.load(Ordering::Relaxed) || heap.next_lent(span).as_ref() == Some(span)
}

/// Whether all of it is lent.
pub(super) fn is_lent(heap: &PreloadHeap, address: *const c_void, bytes: usize) -> bool {
    let all = heap.addresses();
    span(address.cast_mut(), bytes).is_some_and(|span| {
        span.start >= all.start && span.end <= all.end && heap.next_lent(&span).as_ref() == Some(&span)
    })
}

/// What is lent of it, and what is not, part by part.
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

/// Addresses at which nothing is, and nothing comes to lie.
pub(super) fn reserve(part: &Range<usize>, fixed: c_int) -> c_long {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let (start, bytes) = (part.start, part.len());
    // SAFETY: what is there, if it is replaced, the caller has given up.
    unsafe { libc::syscall(libc::SYS_mmap, start, bytes, libc::PROT_NONE, flags, -1, 0) }.min(0)
}

fn protect(part: &Range<usize>, protection: c_int) -> c_long {
    // SAFETY: memory of the program's.
    unsafe { libc::syscall(libc::SYS_mprotect, part.start, part.len(), protection) }
}

/// Whole pages from the beginning of one. `None`: these are none, or end beyond all addresses.
fn span(address: *mut c_void, bytes: usize) -> Option<Range<usize>> {
    let start = address.addr();
    let bytes = bytes.checked_next_multiple_of(PAGE_BYTES)?;
    let valid = bytes > 0 && start.is_multiple_of(PAGE_BYTES);
    Some(start..start.checked_add(bytes)?).filter(|_| valid)
}
