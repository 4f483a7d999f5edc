//! The ignored signals of a process, and a thread's own descriptors. This is the crate's only unsafe module.
#![allow(unsafe_code, reason = "neither signal nor close_range has another interface")]

use std::io;

use rustix::process::Signal;

/// From now on this process ignores `signal`.
pub(crate) fn ignore(signal: Signal) -> io::Result<()> {
    // SAFETY: ignoring runs no code of ours, and none here relies on what the signal did before.
    match unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// From now on the calling thread has no descriptors but the first three; the process's others are
/// unaffected. Descriptors that it opens belong to it alone. It must not use an earlier descriptor, nor pass
/// one of its own to another thread: there the number means another file.
///
/// # Errors
///
/// The kernel is too old (Linux 5.9 is needed), or lacks memory.
pub fn without_descriptors() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    const UNSHARE: libc::c_uint = 1 << 1;
    // SAFETY: no memory is touched. Descriptors that other threads own stay open in the table that those
    // have; this thread's callers see to it that it owns none.
    match unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, UNSHARE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
