//! Cancellation of threads (`pthread_cancel`), which waits until a call has returned.
//!
//! A commit may write and sync the log on the program's own thread, and both are places where a thread that
//! was asked to end does end: by an unwinding that begins in the C library, cannot be refused, and must not
//! pass through Rust, which ends the process. A transaction cut off there would also leave its locks taken.

use std::ffi::c_int;
use std::ptr::null_mut;

/// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
const DISABLE: c_int = 1;

unsafe extern "C" {
    /// The libc crate does not declare it.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Runs `call` with cancellation off. What was asked for meanwhile comes true at the program's next
/// cancellation point.
pub(super) fn uncancelled<R>(call: impl FnOnce() -> R) -> R {
    let mut before = DISABLE;
    // SAFETY: a state that exists, and a place that lives through the call; it fails for nothing else.
    unsafe { pthread_setcancelstate(DISABLE, &mut before) };
    let result = call();
    // SAFETY: the state came from the call above.
    unsafe { pthread_setcancelstate(before, null_mut()) };
    result
}
