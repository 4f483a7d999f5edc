//! `malloc` and the other allocation functions. Small allocations go to the next allocator. If that is not
//! the C library's, all do, because such an allocator has further functions that know only its own memory.
//! The memory it maps is in the arena (`maps.rs`).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use netram_far_machine::limit::PAGE_BYTES;

use super::next_allocator::{first_usable, is_first, is_foreign, next};
use super::{CHILD, errno, give, heap_for, heap_of, pool, set_errno};
use crate::heap::PreloadHeap;

/// The heap for an allocation of `bytes`. `None`: the next allocator serves it.
fn block_heap(bytes: usize) -> Option<&'static PreloadHeap> {
    heap_for(bytes).filter(|_| !is_foreign())
}

/// The heap that owns this allocation.
fn block_heap_of(block: *const c_void) -> Option<&'static PreloadHeap> {
    heap_of(block).filter(|_| !is_foreign())
}

/// Bytes of an allocation that are copied before that part of the old one is freed.
const COPIED_BYTES: usize = 1 << 20;

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    match block_heap(bytes) {
        None if pool::serves() => pool::take(bytes, 1),
        Some(heap) => take(heap, bytes, 1),
        // SAFETY: the program passed this argument.
        None => unsafe { (next().malloc)(bytes) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes).and_then(block_heap_some) {
        Some((heap, bytes)) => take_zeros(heap, bytes),
        None if pool::serves() => pool::take_zeros(count.saturating_mul(bytes)),
        // SAFETY: the program passed these arguments.
        None => unsafe { (next().calloc)(count, bytes) },
    }
}

fn block_heap_some(bytes: usize) -> Option<(&'static PreloadHeap, usize)> {
    block_heap(bytes).map(|heap| (heap, bytes))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn free(old: *mut c_void) {
    if let Some(heap) = block_heap_of(old) {
        return free_far(heap, old);
    }
    if pool::owns(old) {
        return pool::give(old);
    }
    if !is_first(old) {
        // SAFETY: the program passed this argument, and the block is the next allocator's.
        unsafe { (next().free)(old) }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(old: *mut c_void, _bytes: usize) {
    // SAFETY: the program passed this argument.
    unsafe { free(old) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(old: *mut c_void, _align: usize, _bytes: usize) {
    // SAFETY: the program passed this argument.
    unsafe { free(old) }
}

fn free_far(heap: &PreloadHeap, old: *mut c_void) {
    let error = errno();
    let (start, bytes) = (old.addr(), allocated_bytes(heap, old));
    if CHILD.load(Ordering::Relaxed) || !heap.give_slot(start) {
        give(heap, start..start + bytes);
    }
    // The C library's `free` preserves errno, and programs rely on that.
    set_errno(error);
}

/// Size of an allocation in bytes.
fn allocated_bytes(heap: &PreloadHeap, old: *const c_void) -> usize {
    match heap.bytes(old.addr()) {
        Some(bytes) => bytes,
        // Continuing could hand out memory that is in use. The C library aborts as well.
        None => abort(),
    }
}

fn abort() -> ! {
    super::remark(&"free(): invalid pointer: the program frees memory that it has not allocated");
    std::process::abort()
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    if old.is_null() {
        // SAFETY: the program passed this argument.
        return unsafe { malloc(bytes) };
    }
    let far = block_heap_of(old);
    if far.is_none() && !is_first(old) && !pool::owns(old) && block_heap(bytes).is_none() {
        // SAFETY: the program passed these arguments, and both blocks are the next allocator's.
        return unsafe { (next().realloc)(old, bytes) };
    }
    if bytes == 0 {
        // SAFETY: the program passed this argument.
        unsafe { free(old) };
        return ptr::null_mut();
    }
    if let (Some(had), Some(heap)) = (far, block_heap(bytes))
        && had.resize(old.addr(), bytes)
    {
        debug_assert!(ptr::eq(had, heap), "there is one heap");
        return old;
    }
    // SAFETY: any size may be requested.
    let new = unsafe { malloc(bytes) };
    if !new.is_null() {
        let both = usable(old).min(bytes);
        match far {
            Some(heap) => move_far(heap, old, new, both),
            None => {
                // SAFETY: both allocations have that many bytes and do not overlap.
                unsafe { ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast(), both) };
                // SAFETY: the program owned it and gives it up by this call.
                unsafe { free(old) };
            }
        }
    }
    new
}

/// Copies an allocation and frees the old one part by part, so that no page exists twice for long.
fn move_far(heap: &PreloadHeap, old: *mut c_void, new: *mut c_void, bytes: usize) {
    let (start, end) = (old.addr(), old.addr() + allocated_bytes(heap, old));
    let mut done = 0;
    while done < bytes {
        let part = COPIED_BYTES.min(bytes - done);
        let source = old.wrapping_byte_add(done).cast::<u8>();
        let target = new.wrapping_byte_add(done).cast::<u8>();
        // SAFETY: both allocations have these bytes and do not overlap.
        unsafe { ptr::copy_nonoverlapping(source, target, part) };
        done += part;
        if done < bytes {
            give(heap, start + done - part..start + done);
        }
    }
    let given = done.saturating_sub(1) / COPIED_BYTES * COPIED_BYTES;
    if given > 0 {
        return give(heap, start + given..end);
    }
    free_far(heap, old);
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    let pooled = if old.is_null() {
        pool::serves()
    } else {
        pool::owns(old)
    };
    if is_foreign() && !pooled {
        // SAFETY: the program passed these arguments.
        return unsafe { (next().reallocarray)(old, count, bytes) };
    }
    match count.checked_mul(bytes) {
        // SAFETY: the program passed these arguments.
        Some(bytes) => unsafe { realloc(old, bytes) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn memalign(align: usize, bytes: usize) -> *mut c_void {
    match block_heap(bytes) {
        Some(heap) if align.is_power_of_two() => take(heap, bytes, align),
        None if align.is_power_of_two() && pool::serves() => pool::take(bytes, align),
        // SAFETY: the program passed these arguments.
        _ => unsafe { (next().memalign)(align, bytes) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    match block_heap(bytes) {
        Some(heap) if align.is_power_of_two() => take(heap, bytes, align),
        None if align.is_power_of_two() && pool::serves() => pool::take(bytes, align),
        // SAFETY: the program passed these arguments.
        _ => unsafe { (next().aligned_alloc)(align, bytes) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn posix_memalign(into: *mut *mut c_void, align: usize, bytes: usize) -> c_int {
    let valid = align.is_power_of_two() && align >= size_of::<usize>();
    if valid && pool::serves() {
        let taken = pool::take(bytes, align);
        if taken.is_null() {
            return libc::ENOMEM;
        }
        // SAFETY: the caller passed the pointer to write.
        unsafe { into.write(taken) };
        return 0;
    }
    let Some(heap) = block_heap(bytes).filter(|_| valid) else {
        // SAFETY: the program passed these arguments.
        return unsafe { (next().posix_memalign)(into, align, bytes) };
    };
    let Some(taken) = heap.take(bytes, align) else {
        return libc::ENOMEM;
    };
    // SAFETY: the program passed the pointer to write.
    unsafe { into.write(ptr::with_exposed_provenance_mut(taken.address)) };
    0
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn valloc(bytes: usize) -> *mut c_void {
    if is_foreign() && !pool::serves() {
        // SAFETY: the program passed this argument.
        return unsafe { (next().valloc)(bytes) };
    }
    // SAFETY: the program passed this argument.
    unsafe { memalign(PAGE_BYTES, bytes) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    if is_foreign() && !pool::serves() {
        // SAFETY: the program passed this argument.
        return unsafe { (next().pvalloc)(bytes) };
    }
    match bytes.checked_next_multiple_of(PAGE_BYTES) {
        // SAFETY: the program passed this argument.
        Some(bytes) => unsafe { memalign(PAGE_BYTES, bytes) },
        None => no_memory(),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn malloc_usable_size(old: *mut c_void) -> usize {
    match old.is_null() {
        true => 0,
        false => usable(old),
    }
}

fn usable(old: *mut c_void) -> usize {
    match block_heap_of(old) {
        Some(heap) => allocated_bytes(heap, old),
        None if pool::owns(old) => pool::usable(old),
        // SAFETY: the block came from that allocator.
        None if is_first(old) => unsafe { first_usable(old) },
        // SAFETY: as above.
        None => unsafe { (next().usable)(old) },
    }
}

fn take(heap: &PreloadHeap, bytes: usize, align: usize) -> *mut c_void {
    match heap.take(bytes, align) {
        Some(taken) => ptr::with_exposed_provenance_mut(taken.address),
        None => no_memory(),
    }
}

fn take_zeros(heap: &PreloadHeap, bytes: usize) -> *mut c_void {
    let Some(taken) = heap.take(bytes, 1) else {
        return no_memory();
    };
    let new = ptr::with_exposed_provenance_mut::<c_void>(taken.address);
    if taken.used {
        // SAFETY: it has that many bytes and no other owner yet.
        unsafe { ptr::write_bytes(new.cast::<u8>(), 0, bytes) };
    }
    new
}

pub(super) fn no_memory() -> *mut c_void {
    set_errno(libc::ENOMEM);
    ptr::null_mut()
}
