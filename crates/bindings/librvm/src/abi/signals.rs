//! Signals belong to the program: the library's threads block them.

use std::mem::MaybeUninit;

use libc::{SIG_SETMASK, pthread_sigmask, sigset_t};

/// Signals that a thread causes by its own actions. If they were blocked, they would end the process without
/// a chance for a handler to report why.
const OWN: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
];

/// Runs `start` with signals blocked. Threads created in it, and by those, have signals blocked permanently.
pub(crate) fn blocked<R>(start: impl FnOnce() -> R) -> R {
    let before = set_mask(&all_but_own());
    let started = start();
    set_mask(&before);
    started
}

fn all_but_own() -> sigset_t {
    let mut set = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: the C library fills the whole set, which is this function's own.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: it was just filled.
    let mut set = unsafe { set.assume_init() };
    for signal in OWN {
        // SAFETY: the set is this function's own and the signal exists.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

/// Sets this thread's mask and returns the one before.
fn set_mask(mask: &sigset_t) -> sigset_t {
    // All blocked, should the call fail, which with this argument it does not.
    let mut before = *mask;
    // SAFETY: both sets live through the call and are initialised.
    let failed = unsafe { pthread_sigmask(SIG_SETMASK, mask, &mut before) };
    debug_assert_eq!(failed, 0);
    before
}
