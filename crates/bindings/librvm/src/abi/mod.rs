//! The functions exported to C, and the crate's only unsafe code.
//!
//! A function here checks its pointers, copies records in, calls the safe crate within [`guarded`], and
//! copies the answer out. The headers state what a pointer must be; a NULL or misaligned one is refused with
//! the code for a bad record. Other errors of C programs, such as a dangling pointer or an unterminated
//! string, cannot be detected and are the caller's to avoid. SAFETY comments refer to that as "the header
//! requires".

mod calls;
mod cancel;
mod far;
mod far_words;
mod fork;
mod heap;
mod memory;
mod netram;
mod offsets;
mod rds;
mod rds_report;
mod records;
mod segments;
mod shared;
mod signals;
mod statistics;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

pub(crate) use fork::ForkPageMark;
pub(crate) use memory::map_over;
pub(crate) use signals::blocked;

use self::cancel::uncancelled;
use crate::code::ReturnCode;
use crate::failure::{CallFailure, remember};
use crate::record::{CRecord, RecordHead};

/// Bytes of a version string, including its terminating zero.
const VERSION_BYTES_MAX: usize = 128;

/// Runs a call. Its error becomes a code, `errno` and a message. Nothing unwinds into C, and the thread is
/// not cancelled inside.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    uncancelled(|| guarded_in_memory(call))
}

/// [`guarded`] for a call that reads, writes and syncs no file, and so passes no cancellation point. It saves
/// two calls of the C library, which matters where a call takes 13 ns.
pub(crate) fn guarded_in_memory(call: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return ReturnCode::Success as c_int,
        Ok(Err(failure)) => failure,
        // The panic hook has printed the position. Poisoned locks are ignored, because data is changed in
        // single steps.
        Err(_) => CallFailure::new(
            ReturnCode::Internal,
            "an internal error of the library, printed on stderr; please report it, then terminate and start the program again",
        ),
    };
    remember(&failure);
    set_errno(failure.errno);
    failure.code as c_int
}

/// Sets `errno`; 0 leaves it.
fn set_errno(value: c_int) {
    if value != 0 {
        // SAFETY: the C library gives every thread its own `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above; it lives as long as the thread.
        unsafe { errno.write(value) };
    }
}

/// A copy of the record at `pointer`, if it is an initialised one.
pub(crate) fn record<R: CRecord>(pointer: *const R) -> Option<R> {
    if pointer.is_null() || !pointer.is_aligned() {
        return None;
    }
    // SAFETY: it is not NULL, it is aligned, and the header requires memory of a record's size.
    let head = unsafe { pointer.cast::<RecordHead>().read() };
    if head.id != R::ID {
        return None;
    }
    // SAFETY: as above, and the record says that it was initialised.
    Some(unsafe { pointer.read() })
}

/// Writes an answer to C's memory. The caller has refused NULL and misaligned pointers.
pub(crate) fn put<T>(pointer: *mut T, value: T) {
    assert!(!pointer.is_null());
    assert!(pointer.is_aligned());
    // SAFETY: it is neither NULL nor misaligned, and the header requires writable memory of the type's size.
    unsafe { pointer.write(value) }
}

/// Whether a pointer is neither NULL nor misaligned.
pub(crate) fn is_usable<T>(pointer: *const T) -> bool {
    !pointer.is_null() && pointer.is_aligned()
}

/// A path from C; `None` for NULL.
pub(crate) fn name(pointer: *const c_char) -> Option<PathBuf> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: it is not NULL, and the header requires a string with a terminating zero.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
}

/// Whether C's version string equals this one. It is read only as far as it is equal.
pub(crate) fn is_version(pointer: *const c_char, version: &CStr) -> bool {
    if pointer.is_null() {
        return false;
    }
    let wanted = version.to_bytes_with_nul();
    assert!(wanted.len() <= VERSION_BYTES_MAX);
    wanted.iter().enumerate().all(|(at, byte)| {
        // SAFETY: every earlier byte was equal and not the terminating zero, so the string continues here.
        let byte_at = unsafe { pointer.add(at) };
        // SAFETY: as above.
        unsafe { byte_at.read() as u8 == *byte }
    })
}
