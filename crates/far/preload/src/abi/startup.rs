//! The first step of the process, before any of the program's, and its last one.

use std::env;
use std::ffi::{c_int, c_uint};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use netram_far::run::{LIBRARY, PRELOAD, RunReport, SETTINGS};

use super::{CHILD, HEAP, PROGRAM, die, fork, name, next_allocator, quietly};
use crate::report;
use crate::start;

/// Called by the loader when all libraries are loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

static REPORT: OnceLock<RunReport> = OnceLock::new();

extern "C" fn begin() {
    let Some(text) = env::var_os(SETTINGS) else {
        // Loaded without `netram run`: the program runs as usual.
        return;
    };
    let allocator = next_allocator::settle();
    let started = start::settings(&text.to_string_lossy()).and_then(|settings| {
        if !settings.children {
            leave_environment();
        }
        // The arena's threads inherit that all signals are blocked.
        quietly(|| start::heap(&settings)).map(|heap| (heap, settings))
    });
    match started {
        Err(error) => die(&error),
        Ok((heap, settings)) => {
            // No other code sets these.
            let _ = PROGRAM.set(name());
            let _ = HEAP.set(heap);
            let _ = REPORT.set(settings.report);
            if let Some(file) = allocator {
                next_allocator::probe(&file);
            }
        }
    }
    // SAFETY: a function without arguments or result that stays loaded.
    let registered = unsafe { libc::atexit(end) } == 0;
    if !registered || !fork::watch() {
        die(&"the C library has no memory to register an exit handler");
    }
}

extern "C" fn end() {
    // A child has no run to report.
    if !CHILD.load(Ordering::Relaxed)
        && let (Some(heap), Some(told)) = (HEAP.get(), REPORT.get())
    {
        start::finish();
        report::tell(heap, told);
    }
}

/// Removes the settings from the environment, so that programs started by this one run as usual.
fn leave_environment() {
    let others = env::var_os(PRELOAD).unwrap_or_default();
    let others = others.to_string_lossy();
    let kept: Vec<&str> = others
        .split([':', ' '])
        .filter(|name| !name.is_empty() && !name.ends_with(LIBRARY))
        .collect();
    match kept.is_empty() {
        // SAFETY: the process has only this thread.
        true => unsafe { env::remove_var(PRELOAD) },
        // SAFETY: as above.
        false => unsafe { env::set_var(PRELOAD, kept.join(":")) },
    }
    // SAFETY: as above.
    unsafe { env::remove_var(SETTINGS) };
}

/// Gives the calling thread, and those it starts, a descriptor table of their own with only standard error in
/// it.
pub(crate) fn leave_descriptors() -> io::Result<()> {
    let done = |returned: c_int| match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: concerns only this thread's descriptors.
    done(unsafe { libc::unshare(libc::CLONE_FILES) })?;
    // SAFETY: a name that ends in a zero.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    done(null)?;
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: this thread has no other use for either.
        done(unsafe { libc::dup2(null, fd) })?;
    }
    let first = libc::STDERR_FILENO + 1;
    // SAFETY: this thread has just started and uses none of these.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) };
    done(closed as c_int)
}

/// Detaches a command from the program: it is not a child that the program's `wait` could return, and gets no
/// signals from the terminal.
pub(crate) fn leave_process_group(command: &mut Command) {
    let leave = || {
        // SAFETY: concerns only the new process.
        if unsafe { libc::setsid() } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the process has only this thread.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            // SAFETY: ends at once without running code of the program.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: the calls are allowed after a fork, and allocate nothing.
    unsafe { command.pre_exec(leave) };
}
