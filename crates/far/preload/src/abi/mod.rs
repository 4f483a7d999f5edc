//! The one module with `unsafe`: functions that the program calls by name, and system calls.
//!
//! No thread-local variables are used here: the dynamic loader may allocate to create them, which would call
//! back.
#![allow(
    unsafe_code,
    reason = "functions called by name from C and raw system calls have no safe interface"
)]

mod alloc;
mod faults;
mod fork;
mod fork_copy;
mod maps;
mod next_allocator;
mod own_allocator;
mod pool;
mod remap;
mod startup;

use std::ffi::{c_int, c_long, c_void};
use std::fmt::Display;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use pool::enlist;
pub(crate) use startup::{leave_descriptors, leave_process_group};

use crate::heap::PreloadHeap;
use crate::start;
use netram_far_machine::limit::PAGE_BYTES;

/// Exit code of a program that could not be started.
const FAILED: c_int = 1;
/// Prefix of the names of all threads that serve the arena.
const OURS: &[u8] = b"netram-";
const NAME_BYTES: usize = 16;

type Name = [u8; NAME_BYTES];

static HEAP: OnceLock<PreloadHeap> = OnceLock::new();
/// Name of the program's first thread at the start.
static PROGRAM: OnceLock<Name> = OnceLock::new();
/// Whether this process is a child of the one with the arena.
static CHILD: AtomicBool = AtomicBool::new(false);
/// Whether the program has protected some of the arena. Freed memory must then be made accessible again.
static PROTECTED: AtomicBool = AtomicBool::new(false);

/// The heap for an allocation of `bytes`. `None`: it is not for the arena.
fn heap_for(bytes: usize) -> Option<&'static PreloadHeap> {
    let heap = HEAP.get().filter(|heap| bytes >= heap.threshold)?;
    (!CHILD.load(Ordering::Relaxed) && !is_ours()).then_some(heap)
}

/// The heap that contains this address, for any caller.
fn heap_of(address: *const c_void) -> Option<&'static PreloadHeap> {
    HEAP.get().filter(|heap| heap.contains(address.addr()))
}

/// Whether a thread of the arena calls: the C library allocates on its behalf. Costs 60 ns.
fn is_ours() -> bool {
    let name = name();
    // A program whose own name has the prefix has threads with such names.
    name.starts_with(OURS) && PROGRAM.get() != Some(&name)
}

/// Name of the calling thread.
fn name() -> Name {
    let mut name = [0; NAME_BYTES];
    // SAFETY: the kernel writes at most 16 bytes, with a final zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Runs `body` with all signals blocked. A holder of an arena's lock must not enter a handler of the program:
/// a fault there would wait for a thread that waits for the lock. Costs 0.2 µs.
pub(crate) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: it fills a local.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: two locals, of which the first is filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let done = body();
    // SAFETY: the mask that the call above returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    done
}

/// Frees memory.
fn give(heap: &PreloadHeap, addresses: Range<usize>) {
    if CHILD.load(Ordering::Relaxed) {
        return give_copy(addresses);
    }
    if PROTECTED.load(Ordering::Relaxed) {
        // SAFETY: pages of the arena that the program frees, so that nothing refers to them.
        let made = unsafe {
            libc::syscall(
                libc::SYS_mprotect,
                addresses.start,
                addresses.len(),
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if made != 0 {
            // The kernel allows no further split of the mapping. These addresses are not reused.
            return heap.leave(addresses);
        }
    }
    heap.give(addresses);
}

/// Frees memory of a child's copy, which is its own: only whole pages without another owner are discarded.
fn give_copy(addresses: Range<usize>) {
    let start = addresses.start.next_multiple_of(PAGE_BYTES);
    let end = addresses.end / PAGE_BYTES * PAGE_BYTES;
    if start < end {
        // SAFETY: pages that the program frees, so that nothing refers to them.
        unsafe { libc::syscall(libc::SYS_madvise, start, end - start, libc::MADV_DONTNEED) };
    }
}

fn errno() -> c_int {
    // SAFETY: the address is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno }
}

fn set_errno(error: c_int) {
    // SAFETY: the address is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno = error };
}

/// Result of a failed system call.
fn refuse(error: c_int) -> c_long {
    set_errno(error);
    -1
}

/// Writes a message about the program's behaviour to standard error.
fn remark(text: &dyn Display) {
    start::remark(format_args!("{text}"));
}

/// Ends the process: it cannot start, or cannot continue.
fn die(why: &dyn Display) -> ! {
    remark(why);
    // SAFETY: the process ends without running anything else.
    unsafe { libc::_exit(FAILED) }
}
