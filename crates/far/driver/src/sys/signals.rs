//! Threads in which no signal's handler runs.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;

use libc::{SIG_SETMASK, c_int, pthread_sigmask, sigset_t};

/// What a thread does to itself, which cannot wait.
const OWN: [c_int; 7] = [
    libc::SIGBUS,
    libc::SIGSEGV,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Signals wait as long as this lives, for the thread that made it. Two system calls, 0.1 us each.
pub(crate) struct SignalsBlocked {
    before: sigset_t,
    /// This thread's, not to be sent to another.
    here: PhantomData<*const ()>,
}

impl SignalsBlocked {
    pub(crate) fn here() -> SignalsBlocked {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: this fills `all`.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        for signal in OWN {
            // SAFETY: `all` is filled, and the signal is one that there is.
            unsafe { libc::sigdelset(all.as_mut_ptr(), signal) };
        }
        // SAFETY: `all` is filled. This fills `before`; it fails only for an operation that there is not.
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
        // SAFETY: the mask is the one that the system gave.
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
    fn a_signal_waits_until_it_is_let_in() {
        let handler: extern "C" fn(c_int) = handle;
        // SAFETY: the handler does nothing but count, and the signal goes to this thread.
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
