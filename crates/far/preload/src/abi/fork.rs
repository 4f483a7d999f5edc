//! Children. One that shares the program's memory until it becomes another program (`vfork`, `posix_spawn`,
//! `system`) is served like the program. One of `fork` has none of the arena, but a copy of what is in it, if
//! it asks (`heritage.rs`, `faults.rs`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{CHILD, HEAP, faults, fork_copy};
use crate::heap::PreloadHeapState;

/// Signals of what a thread does itself: a fault must be told, or it ends the process.
const OWN: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// From before a fork until after it.
struct Fork {
    /// So that the child does not get half of a change.
    guard: Option<MutexGuard<'static, PreloadHeapState>>,
    /// Signals that the program has blocked.
    blocked: MaybeUninit<libc::sigset_t>,
}

struct ForkCell(UnsafeCell<Option<Fork>>);

// SAFETY: only the thread that forks has it, between two functions that the C library calls in pairs, and
// under the lock that is kept in it.
unsafe impl Sync for ForkCell {}

static FORK: ForkCell = ForkCell(UnsafeCell::new(None));

/// Has this called for each fork.
pub(super) fn watch() -> bool {
    fork_copy::prepare();
    // SAFETY: three functions that take and return nothing, in a library that stays loaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 }
}

extern "C" fn before() {
    let Some(heap) = HEAP.get() else { return };
    if CHILD.load(Ordering::Relaxed) {
        faults::settle();
    }
    let blocked = block();
    let guard = heap.lock();
    if !CHILD.load(Ordering::Relaxed) {
        fork_copy::offer(heap, &guard);
    }
    let fork = Fork {
        guard: Some(guard),
        blocked,
    };
    // SAFETY: whoever has the lock has this.
    unsafe { *FORK.0.get() = Some(fork) };
}

extern "C" fn in_parent() {
    if let Some(heap) = HEAP.get()
        && !CHILD.load(Ordering::Relaxed)
    {
        fork_copy::serve(heap);
    }
    release(false);
}

extern "C" fn in_child() {
    let asked = CHILD.swap(true, Ordering::Relaxed);
    let Some(heap) = HEAP.get() else { return };
    release(faults::is_offered());
    // A child's child: all of it is done. One that has asked before this was called has been marked, too.
    if !asked || faults::has_asked() {
        faults::inherit(heap);
    }
}

/// Lets go what `before` has taken.
fn release(faults: bool) {
    // Taken out first: the next thread that forks writes its own there as soon as the lock is free.
    // SAFETY: by the thread of `before`, or its copy, which has the lock.
    let Some(mut fork) = (unsafe { (*FORK.0.get()).take() }) else {
        return;
    };
    drop(fork.guard.take());
    if faults {
        // SAFETY: signals that the kernel has written; one is taken out.
        unsafe { libc::sigdelset(fork.blocked.as_mut_ptr(), libc::SIGSEGV) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, fork.blocked.as_ptr(), ptr::null_mut()) };
}

/// Blocks signals: a handler of the program's would wait for the lock.
fn block() -> MaybeUninit<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: it fills a local.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in OWN {
        // SAFETY: it has been filled.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    // SAFETY: two locals, and the first one is filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    before
}
