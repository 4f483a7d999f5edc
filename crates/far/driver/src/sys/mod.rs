//! Mapped memory and `userfaultfd`. This is the crate's only unsafe module.
#![allow(
    unsafe_code,
    reason = "mappings, userfaultfd and shared areas of memory have no safe interface"
)]

mod area;
mod memory;
mod signals;
mod uffd;

pub use area::Pod;
pub(crate) use area::{AreaAllocator, ArenaArea};
pub(crate) use memory::{MappedMemory, locked_bytes};
pub(crate) use signals::SignalsBlocked;
pub(crate) use uffd::{Uffd, UffdError, UffdFeatures, UffdMessage};

use rustix::process::{Pid, Signal};

/// Sends a signal to a thread of this process. Does nothing if the thread has ended.
pub(crate) fn signal_thread(thread: u32, signal: Signal) {
    let process = rustix::process::getpid();
    let Some(thread) = Pid::from_raw(thread.cast_signed()) else {
        return;
    };
    let (process, thread) = (process.as_raw_nonzero().get(), thread.as_raw_nonzero().get());
    // SAFETY: the call touches no memory of ours, and refuses a number that is not a thread of this process.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal.as_raw()) };
}
