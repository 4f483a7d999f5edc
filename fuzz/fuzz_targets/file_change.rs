#![no_main]

use netram_fuzz_checks::programs::file_change;

libfuzzer_sys::fuzz_target!(init: file_change::begin(), |bytes: &[u8]| file_change::run(bytes));
