//! Children. One that shares the program's memory until it becomes another program (`vfork`, `posix_spawn`, `system`) is served like the program. One of
//! `fork` has none of the arena: it ends at its first reference there, and says why.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::{CHILD, HEAP};
use crate::heap::Parts;

const SENTENCE: &[u8] =
    b"netram run: a child of the program has none of its far memory, and has touched it: it ends here. \
Children of fork that become other programs are fine; others need a program that is run without netram run.\n";

/// Held from before a fork until after it, so that the child does not get half of a change.
struct Held(UnsafeCell<Option<MutexGuard<'static, Parts>>>);

// SAFETY: only the thread that forks has it, between two functions that the C library calls in pairs, and under the lock that is kept in it.
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// Has this called for each fork.
pub(super) fn watch() -> bool {
    // SAFETY: three functions that take and return nothing, in a library that stays loaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 }
}

extern "C" fn before() {
    let guard = HEAP.get().map(|heap| heap.lock());
    // SAFETY: whoever has the lock has this.
    unsafe { *HELD.0.get() = guard };
}

extern "C" fn in_parent() {
    release();
}

/// Lets go what `before` has taken.
fn release() {
    // Taken out first: the next thread that forks writes its own there as soon as the lock is free.
    // SAFETY: by the thread of `before`, or its copy, which has the lock.
    let guard = unsafe { (*HELD.0.get()).take() };
    drop(guard);
}

extern "C" fn in_child() {
    release();
    if CHILD.swap(true, Ordering::Relaxed) {
        // A child's child: all of it is done.
        return;
    }
    reserve();
    say_why();
}

/// Nothing else comes to lie at the arena's addresses: what is taken for it is not there.
fn reserve() {
    let Some(all) = HEAP.get().map(|heap| heap.addresses()) else {
        return;
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: nothing is there, or nothing is replaced. Should that fail, references end the child all the same.
    unsafe {
        libc::syscall(
            libc::SYS_mmap,
            all.start,
            all.len(),
            libc::PROT_NONE,
            flags,
            -1,
            0,
        )
    };
}

/// Says why, unless the program has a word for such an end itself.
fn say_why() {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only, into a local.
    let asked = unsafe { libc::sigaction(libc::SIGSEGV, ptr::null(), before.as_mut_ptr()) };
    // SAFETY: zeros are such a value, or the kernel has written one.
    let mut action = unsafe { before.assume_init() };
    if asked != 0 || action.sa_sigaction != libc::SIG_DFL {
        return;
    }
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
    action.sa_sigaction = handler as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND;
    // SAFETY: the handler only writes to a descriptor. Should this fail, the child ends without a word.
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut()) };
}

/// The reference is made again when this returns, and then ends the child as ever.
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel gave it for this call.
    let info = unsafe { &*info };
    // SAFETY: of a fault it says where.
    let address = unsafe { info.si_addr() };
    if HEAP.get().is_some_and(|heap| heap.contains(address.addr())) {
        // SAFETY: bytes that live for ever.
        unsafe { libc::write(libc::STDERR_FILENO, SENTENCE.as_ptr().cast(), SENTENCE.len()) };
    }
}
