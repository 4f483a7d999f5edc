//! Blocking of signals, so that no handler runs in a thread.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIG_SETMASK, c_int, pthread_sigmask, sigset_t};

/// Signals that a thread's own instructions raise, which cannot be deferred.
const OWN: [c_int; 7] = [
    libc::SIGBUS,
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Blocks signals in the current thread while it lives. Two system calls of 0.1 µs each.
pub(crate) struct SignalsBlocked {
    before: sigset_t,
    /// Belongs to this thread and must not be sent to another.
    here: PhantomData<*const ()>,
}

impl SignalsBlocked {
    pub(crate) fn here() -> SignalsBlocked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: this fills `all`.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        for signal in OWN {
            // SAFETY: `all` is filled, and the signal is valid.
            unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
        }
        // SAFETY: `all` is filled. This fills `before`; it fails only for an invalid operation.
        unsafe { pthread_sigmask(SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: it is filled.
        let before = unsafe { before.assume_init() };
        SignalsBlocked {
            before,
            here: PhantomData,
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the mask is the one that the system returned.
        unsafe { pthread_sigmask(SIG_SETMASK, &raw const self.before, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn handle(_signal: c_int) {
        HANDLED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_blocked_signal_is_delivered_after_the_last_guard() {
        let handler: extern "C" fn(c_int) = handle;
        // SAFETY: the handler only counts, and the signal goes to this thread.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGUSR2, handler as libc::sighandler_t) };
        let blocked = SignalsBlocked::here();
        let inner = SignalsBlocked::here();
        raise();
        drop(inner);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        drop(blocked);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 1);
        raise();
        assert_eq!(HANDLED.load(Ordering::SeqCst), 2);
    }
}
