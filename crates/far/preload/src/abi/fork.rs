//! Forks. A child that shares the program's memory until `exec` (`vfork`, `posix_spawn`, `system`) is served
//! like the program. A child of `fork` has no arena, but gets a copy of its content on demand
//! (`fork_copy.rs`, `faults.rs`).

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{CHILD, HEAP, faults, fork_copy};
use crate::heap::PreloadHeapState;

/// Signals raised by a thread's own instructions: a fault must be delivered, or it ends the process.
const OWN: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// State kept from before a fork until after it.
struct Fork {
    /// The heap's lock, so that the child does not inherit a half-made change.
    guard: Option<MutexGuard<'static, PreloadHeapState>>,
    /// Signals that the program has blocked.
    blocked: MaybeUninit<libc::sigset_t>,
}

struct ForkCell(UnsafeCell<Option<Fork>>);

// SAFETY: only the forking thread uses it, between two functions that the C library calls in pairs, and under
// the lock that it contains.
unsafe impl Sync for ForkCell {}

static FORK: ForkCell = ForkCell(UnsafeCell::new(None));

/// Registers the fork handlers. Returns whether that worked.
pub(super) fn watch() -> bool {
    fork_copy::prepare();
    // SAFETY: three functions without arguments or results, in a library that stays loaded.
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
    // SAFETY: the holder of the lock owns this cell.
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
    // If the parent is itself a child that has been set up, nothing is left to do. A child that faulted
    // before this call was set up already.
    if !asked || faults::has_asked() {
        faults::inherit(heap);
    }
}

/// Releases what `before` acquired.
fn release(faults: bool) {
    // Taken out first: the next forking thread writes its own value as soon as the lock is free.
    // SAFETY: called by the thread of `before`, or its copy, which has the lock.
    let Some(mut fork) = (unsafe { (*FORK.0.get()).take() }) else {
        return;
    };
    drop(fork.guard.take());
    if faults {
        // SAFETY: the kernel filled the set; one signal is removed.
        unsafe { libc::sigdelset(fork.blocked.as_mut_ptr(), libc::SIGSEGV) };
    }
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, fork.blocked.as_ptr(), ptr::null_mut()) };
}

/// Blocks signals, because a handler of the program could wait for the lock.
fn block() -> MaybeUninit<libc::sigset_t> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: it fills a local.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    for signal in OWN {
        // SAFETY: it is filled.
        unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
    }
    // SAFETY: two locals, of which the first is filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    before
}
