//! The functions of `rds.h` that inspect the heap: statistics, listings, the trace.

use std::ffi::{CString, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use libc::FILE;

use super::cancel::uncancelled;
use super::rds::{answer, attempt};
use super::{is_usable, put};
use crate::rds::{self, BAD_ARGS, RdsError, RdsFigures};

/// Whether calls are traced.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rds_tracing: AtomicI32 = AtomicI32::new(0);

/// Stream to which the trace is written.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rds_tracing_file: AtomicPtr<FILE> = AtomicPtr::new(null_mut());

/// `rds_stats_t`.
#[repr(C)]
struct Stats {
    numbers: [u32; 13],
}

/// `rds_long_stats_t`.
#[repr(C)]
struct LongStats {
    numbers: [u64; 13],
}

#[unsafe(no_mangle)]
extern "C" fn rds_get_stats(stats: *mut Stats) -> c_int {
    let told = attempt(|| {
        let numbers = numbers(stats)?;
        // Numbers that do not fit are capped; the original's wrapped.
        let numbers = numbers.map(|number| u32::try_from(number).unwrap_or(u32::MAX));
        put(stats, Stats { numbers });
        Ok(())
    });
    told.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn rds_get_long_stats(stats: *mut LongStats) -> c_int {
    let told = attempt(|| {
        let numbers = numbers(stats)?;
        put(stats, LongStats { numbers });
        Ok(())
    });
    told.err().unwrap_or(0)
}

/// The statistics in the order of the records, after a check of the record's pointer.
fn numbers<T>(stats: *mut T) -> Result<[u64; 13], RdsError> {
    if !is_usable(stats) {
        return Err(RdsError::new(
            BAD_ARGS,
            "the pointer to the statistics record is NULL or misaligned",
        ));
    }
    let RdsFigures {
        malloc,
        prealloc,
        free,
        hits,
        misses,
        large_list,
        large_misses,
        merged,
        free_bytes,
        taken_bytes,
    } = rds::report(false)?;
    Ok([
        malloc,
        prealloc,
        free,
        0,
        hits,
        misses,
        large_list,
        0,
        large_misses,
        merged,
        0,
        free_bytes,
        taken_bytes,
    ])
}

#[unsafe(no_mangle)]
extern "C" fn rds_clear_stats(error: *mut c_int) -> c_int {
    answer(attempt(|| rds::report(true).map(drop)), error)
}

#[unsafe(no_mangle)]
extern "C" fn rds_print_stats() -> c_int {
    print_heap();
    0
}

#[unsafe(no_mangle)]
extern "C" fn print_heap() {
    if let Ok(text) = attempt(rds::listing) {
        let text = c_text(&text);
        // SAFETY: both are strings with a terminating zero; the second is what the first requires.
        uncancelled(|| unsafe { libc::printf(c"%s".as_ptr(), text.as_ptr()) });
    }
}

#[unsafe(no_mangle)]
extern "C" fn rds_trace_on(file: *mut FILE) -> c_int {
    if file.is_null() {
        return BAD_ARGS;
    }
    rds_tracing_file.store(file, Ordering::SeqCst);
    rds_tracing.store(1, Ordering::SeqCst);
    0
}

#[unsafe(no_mangle)]
extern "C" fn rds_trace_off() -> c_int {
    rds_tracing.store(0, Ordering::SeqCst);
    rds_tracing_file.store(null_mut(), Ordering::SeqCst);
    0
}

#[unsafe(no_mangle)]
extern "C" fn rds_trace_dump_heap() -> c_int {
    match attempt(rds::listing) {
        Ok(text) => {
            trace(|| text.trim_end().to_owned());
            0
        }
        Err(code) => code,
    }
}

/// Writes a line to the trace if tracing is on.
pub(super) fn trace(line: impl FnOnce() -> String) {
    if rds_tracing.load(Ordering::Relaxed) == 0 {
        return;
    }
    let file = rds_tracing_file.load(Ordering::Acquire);
    if file.is_null() {
        return;
    }
    let text = c_text(&format!("rds: {}\n", line()));
    uncancelled(|| {
        // SAFETY: the program passed the file for this and keeps it open until tracing is turned off; the
        // text has a terminating zero.
        unsafe { libc::fputs(text.as_ptr(), file) };
        // SAFETY: as above.
        unsafe { libc::fflush(file) };
    });
}

fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).expect("zero bytes were replaced")
}
