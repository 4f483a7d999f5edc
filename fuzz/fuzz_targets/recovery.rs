#![no_main]

use netram_fuzz_checks::programs::recovery;

libfuzzer_sys::fuzz_target!(init: recovery::begin(), |bytes: &[u8]| recovery::run(bytes));
