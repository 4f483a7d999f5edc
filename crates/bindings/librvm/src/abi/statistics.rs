//! The functions of `rvm_statistics.h`, except for records.

use std::ffi::{CStr, CString, c_char, c_int};

use libc::{FILE, fputs};

use super::{guarded, is_version, put, record};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::LIBRARY;
use crate::statistics::{StatisticsRecord, version_skew};

/// `RVM_STATISTICS_VERSION`.
const VERSION: &CStr = c"RVM Statistics Version 1.1 8 Dec 1992";

#[unsafe(no_mangle)]
extern "C" fn rvm_statistics(version: *const c_char, statistics: *mut StatisticsRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        if !is_version(version, VERSION) {
            return Err(version_skew());
        }
        let asked = record(statistics).ok_or_else(no_record)?;
        put(statistics, LIBRARY.statistics(asked.head.from_heap != 0)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_print_statistics(statistics: *const StatisticsRecord, out: *mut FILE) -> c_int {
    guarded(|| {
        let statistics = record(statistics).ok_or_else(no_record)?;
        if out.is_null() {
            return Err(CallFailure::io(libc::EBADF, "the file to print to is NULL"));
        }
        let text = CString::new(statistics.to_string()).expect("numbers and words contain no zero bytes");
        // SAFETY: the text ends in a zero, and the header requires an open FILE.
        match unsafe { fputs(text.as_ptr(), out) } {
            libc::EOF => {
                let error = std::io::Error::last_os_error();
                Err(CallFailure::system(&error, format!("printing: {error}")))
            }
            _ => Ok(()),
        }
    })
}

fn no_record() -> CallFailure {
    CallFailure::new(
        ReturnCode::Statistics,
        "the pointer is not a statistics record initialised by rvm_init_statistics",
    )
}
