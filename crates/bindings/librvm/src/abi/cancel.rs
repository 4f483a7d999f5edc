//! Cancellation of threads (`pthread_cancel`), which waits until a call has returned.
//!
//! A commit may write and sync the log on the program's own thread. Both are cancellation points: a thread
//! with a pending request ends there, by an unwinding that begins in the C library and cannot be refused. It
//! must not pass through Rust, which would end the process. A transaction interrupted there would also keep
//! its locks.

use std::ffi::c_int;
use std::ptr::null_mut;

/// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
const DISABLE: c_int = 1;

unsafe extern "C" {
    /// Not declared by the libc crate.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `call` with cancellation disabled. A request made during it takes effect at the program's next
/// cancellation point.
pub(super) fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    let mut before = DISABLE;
    // SAFETY: a valid state, and a variable that lives through the call, which cannot fail otherwise.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let result = call();
    // SAFETY: the state came from the call above.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}
