//! Memory whose pages may be elsewhere, and the kernel's word of those that are missed. This is the crate's
//! only unsafe module.
#![allow(
    unsafe_code,
    reason = "neither mappings, userfaultfd nor memory that is handed out in parts has another interface"
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

/// Sends a signal to one thread of this process. A thread that has ended gets none.
pub(crate) fn signal_thread(thread: u32, signal: Signal) {
    let process = rustix::process::getpid();
    let Some(thread) = Pid::from_raw(thread.cast_signed()) else {
        return;
    };
    let (process, thread) = (process.as_raw_nonzero().get(), thread.as_raw_nonzero().get());
    // SAFETY: the call touches no memory of ours; a number that is no thread's of this process is refused.
    let _ = unsafe { libc::syscall(libc::SYS_tgkill, process, thread, signal.as_raw()) };
}
