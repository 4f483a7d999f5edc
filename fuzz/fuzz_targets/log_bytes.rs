#![no_main]

use netram_fuzz_checks::programs::log_bytes;

libfuzzer_sys::fuzz_target!(init: log_bytes::begin(), |bytes: &[u8]| log_bytes::run(bytes));
