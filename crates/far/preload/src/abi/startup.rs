//! The first step of the process, before any of the program's, and the last one.

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

/// What the loader calls when all libraries are in their places.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

static REPORT: OnceLock<RunReport> = OnceLock::new();

extern "C" fn begin() {
    let Some(text) = env::var_os(SETTINGS) else {
        // Loaded by somebody else: the program is as ever.
        return;
    };
    let allocator = next_allocator::settle();
    let started = start::settings(&text.to_string_lossy()).and_then(|settings| {
        if !settings.children {
            leave_environment();
        }
        // The arena's threads take over that no signal interrupts them.
        quietly(|| start::heap(&settings)).map(|heap| (heap, settings))
    });
    match started {
        Err(error) => die(&error),
        Ok((heap, settings)) => {
            // Nobody else sets them.
            let _ = PROGRAM.set(name());
            let _ = HEAP.set(heap);
            let _ = REPORT.set(settings.report);
            if let Some(file) = allocator {
                next_allocator::probe(&file);
            }
        }
    }
    // SAFETY: a function that takes and returns nothing, and stays loaded.
    let registered = unsafe { libc::atexit(end) } == 0;
    if !registered || !fork::watch() {
        die(&"the C library has no memory for what is to be done at the end");
    }
}

extern "C" fn end() {
    // A child has done nothing of it.
    if !CHILD.load(Ordering::Relaxed)
        && let (Some(heap), Some(told)) = (HEAP.get(), REPORT.get())
    {
        start::finish();
        report::tell(heap, told);
    }
}

/// Programs that this one starts are run as ever.
fn leave_environment() {
    let others = env::var_os(PRELOAD).unwrap_or_default();
    let others = others.to_string_lossy();
    let kept: Vec<&str> = others
        .split([':', ' '])
        .filter(|name| !name.is_empty() && !name.ends_with(LIBRARY))
        .collect();
    match kept.is_empty() {
        // SAFETY: the process has one thread, which is here.
        true => unsafe { env::remove_var(PRELOAD) },
        // SAFETY: as above.
        false => unsafe { env::set_var(PRELOAD, kept.join(":")) },
    }
    // SAFETY: as above.
    unsafe { env::remove_var(SETTINGS) };
}

/// The calling thread, and those that it starts, have descriptors of their own from now on: of those that
/// were open, standard error only.
pub(crate) fn leave_descriptors() -> io::Result<()> {
    let done = |returned: c_int| match returned {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    };
    // SAFETY: concerns this thread's descriptors only.
    done(unsafe { libc::unshare(libc::CLONE_FILES) })?;
    // SAFETY: a name that ends in a zero.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    done(null)?;
    for fd in [libc::STDIN_FILENO, libc::STDOUT_FILENO] {
        // SAFETY: this thread has no other use for either.
        done(unsafe { libc::dup2(null, fd) })?;
    }
    let first = libc::STDERR_FILENO + 1;
    // SAFETY: this thread uses none of those: it has just begun.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, c_uint::MAX, 0) };
    done(closed as c_int)
}

/// What this becomes is no child of the program's, which may wait for whatever child ends, and gets no signal
/// that a terminal gives it.
pub(crate) fn leave_process_group(command: &mut Command) {
    let leave = || {
        // SAFETY: concerns the new process only.
        if unsafe { libc::setsid() } == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the process has one thread, which is here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => Ok(()),
            // SAFETY: ends at once, and runs nothing of the program's.
            _ => unsafe { libc::_exit(0) },
        }
    };
    // SAFETY: what it calls may be called after a fork, and nothing is allocated.
    unsafe { command.pre_exec(leave) };
}
