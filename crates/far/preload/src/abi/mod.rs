//! The one module with `unsafe`: what the program calls by name, and what is called of the system.
//!
//! Nothing here keeps anything a thread: the dynamic loader may allocate to find that, and would come back
//! here.
#![allow(
    unsafe_code,
    reason = "functions that C calls by name, and what is called of the system, have no other interface"
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

/// The exit code of a program that could not be begun.
const FAILED: c_int = 1;
/// The names of all threads that serve the arena begin so.
const OURS: &[u8] = b"netram-";
const NAME_BYTES: usize = 16;

type Name = [u8; NAME_BYTES];

static HEAP: OnceLock<PreloadHeap> = OnceLock::new();
/// The name that the program's first thread began with.
static PROGRAM: OnceLock<Name> = OnceLock::new();
/// This process is a child of the one that has the arena.
static CHILD: AtomicBool = AtomicBool::new(false);
/// The program has protected some of the arena: what is given back must be made usable again.
static PROTECTED: AtomicBool = AtomicBool::new(false);

/// The heap for an allocation of so many bytes. `None`: that is not our affair.
fn heap_for(bytes: usize) -> Option<&'static PreloadHeap> {
    let heap = HEAP.get().filter(|heap| bytes >= heap.threshold)?;
    (!CHILD.load(Ordering::Relaxed) && !is_ours()).then_some(heap)
}

/// The heap in which this address lies, whoever asks.
fn heap_of(address: *const c_void) -> Option<&'static PreloadHeap> {
    HEAP.get().filter(|heap| heap.contains(address.addr()))
}

/// Whether a thread of the arena's asks: the C library allocates in its name. 60 ns.
fn is_ours() -> bool {
    let name = name();
    // A program whose own file has such a name has threads of that name.
    name.starts_with(OURS) && PROGRAM.get() != Some(&name)
}

/// The calling thread's.
fn name() -> Name {
    let mut name = [0; NAME_BYTES];
    // SAFETY: the kernel writes 16 bytes at most, with a zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Does something while no signal interrupts this thread. Whoever holds a lock of the arena's must not come
/// to a handler of the program's: a fault there would wait for a thread that waits for that lock. 0.2 µs.
pub(crate) fn quietly<T>(body: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: it fills a local.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: two locals, and the first one is filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let done = body();
    // SAFETY: what the call above has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    done
}

/// Takes memory back.
fn give(heap: &PreloadHeap, addresses: Range<usize>) {
    if CHILD.load(Ordering::Relaxed) {
        return give_copy(addresses);
    }
    if PROTECTED.load(Ordering::Relaxed) {
        // SAFETY: pages of the arena that the program gives back: nothing refers to them.
        let made = unsafe {
            libc::syscall(
                libc::SYS_mprotect,
                addresses.start,
                addresses.len(),
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if made != 0 {
            // The kernel has no room for one more part of memory. These addresses are not used again.
            return heap.leave(addresses);
        }
    }
    heap.give(addresses);
}

/// What a child gives back of its copy is memory of its own: pages that nobody else has a part of.
fn give_copy(addresses: Range<usize>) {
    let start = addresses.start.next_multiple_of(PAGE_BYTES);
    let end = addresses.end / PAGE_BYTES * PAGE_BYTES;
    if start < end {
        // SAFETY: pages that the program gives back: nothing refers to them.
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

/// What a system call gives that fails.
fn refuse(error: c_int) -> c_long {
    set_errno(error);
    -1
}

/// Something that the program should not have done, on standard error.
fn remark(text: &dyn Display) {
    start::remark(format_args!("{text}"));
}

/// Ends the process: it has not begun, or cannot go on.
fn die(why: &dyn Display) -> ! {
    remark(why);
    // SAFETY: the process ends without running anything else.
    unsafe { libc::_exit(FAILED) }
}
