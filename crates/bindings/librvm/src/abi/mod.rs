//! What C sees: the exported functions, and the crate's only unsafe code.
//!
//! A function here checks its pointers, copies records in, calls the safe crate within [`guarded`], and
//! copies the answer out. What a pointer must be is written in the headers; a NULL or misaligned one is
//! refused with the code for a bad record. C's own errors beyond that (a dangling pointer, a string without
//! end) cannot be seen and are the caller's to avoid: that is what the SAFETY sentences mean by "the header
//! asks for".

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

/// Bytes of a version string, with its end.
const VERSION_BYTES_MAX: usize = 128;

/// Runs a call: its error becomes a code, `errno` and a sentence, nothing unwinds into C, and the thread is
/// not cancelled in it.
pub(crate) fn guarded(call: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    uncancelled(|| guarded_in_memory(call))
}

/// [`guarded`] for a call that reads, writes and syncs no file, and so passes no cancellation point. Two
/// calls of the C library less, which shows where a call takes 13 ns.
pub(crate) fn guarded_in_memory(call: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return ReturnCode::Success as c_int,
        Ok(Err(failure)) => failure,
        // The panic's hook has printed where. Locks are passed over: what was done is done in single steps.
        Err(_) => CallFailure::new(
            ReturnCode::Internal,
            "a fault of the library, printed on stderr; please report it. Terminate and start again",
        ),
    };
    remember(&failure);
    set_errno(failure.errno);
    failure.code as c_int
}

/// Sets `errno`; 0 leaves it.
fn set_errno(value: c_int) {
    if value != 0 {
        // SAFETY: the C library gives every thread an `errno` of its own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above; it lives as long as the thread.
        unsafe { errno.write(value) };
    }
}

/// A copy of the record at `pointer`, if it is one.
pub(crate) fn record<R: CRecord>(pointer: *const R) -> Option<R> {
    if pointer.is_null() || !pointer.is_aligned() {
        return None;
    }
    // SAFETY: it is not NULL, it is aligned, and the header asks for memory of a record's size.
    let head = unsafe { pointer.cast::<RecordHead>().read() };
    if head.id != R::ID {
        return None;
    }
    // SAFETY: as above, and the record says that it was initialised.
    Some(unsafe { pointer.read() })
}

/// Puts an answer into C's memory. The caller has refused NULL and misaligned pointers.
pub(crate) fn put<T>(pointer: *mut T, value: T) {
    assert!(!pointer.is_null());
    assert!(pointer.is_aligned());
    // SAFETY: it is neither NULL nor misaligned, and the header asks for writable memory of the type's size.
    unsafe { pointer.write(value) }
}

/// Whether a pointer can be read or written at all.
pub(crate) fn is_usable<T>(pointer: *const T) -> bool {
    !pointer.is_null() && pointer.is_aligned()
}

/// A name. `None`: NULL.
pub(crate) fn name(pointer: *const c_char) -> Option<PathBuf> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: it is not NULL, and the header asks for a string that ends.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(PathBuf::from(OsStr::from_bytes(text.to_bytes())))
}

/// Whether C's version string is this one. It is looked at as far as it is equal.
pub(crate) fn is_version(pointer: *const c_char, version: &CStr) -> bool {
    if pointer.is_null() {
        return false;
    }
    let wanted = version.to_bytes_with_nul();
    assert!(wanted.len() <= VERSION_BYTES_MAX);
    wanted.iter().enumerate().all(|(at, byte)| {
        // SAFETY: every byte before was equal and not the end, so the string goes on here.
        let place = unsafe { pointer.add(at) };
        // SAFETY: as above.
        unsafe { place.read() as u8 == *byte }
    })
}
