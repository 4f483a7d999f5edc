//! The functions of `netram.h`.

use std::ffi::{c_char, c_int, c_long};
use std::time::Duration;

use super::{guarded, is_usable, put};
use crate::code::ReturnCode;
use crate::failure::{CallFailure, keep_lenders, text};
use crate::library::LIBRARY;
use crate::record::LendersRecord;

#[unsafe(no_mangle)]
extern "C" fn rvm_error_text() -> *const c_char {
    text()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_lenders(lenders: *mut LendersRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        if !is_usable(lenders) {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the pointer to the lenders record is NULL or misaligned",
            ));
        }
        put(lenders, LIBRARY.with_log(|log| Ok(log.lenders()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_lenders_text() -> *const c_char {
    let mut text = String::new();
    guarded(|| {
        LIBRARY.ready()?;
        text = LIBRARY.with_log(|log| Ok(log.lenders_text()))?;
        Ok(())
    });
    keep_lenders(&text)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_wait_for_lenders(timeout_ms: c_long) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        LIBRARY.with_log(|log| log.wait_for_lenders(timeout))
    })
}
