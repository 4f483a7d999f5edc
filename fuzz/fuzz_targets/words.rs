#![no_main]

use netram_fuzz_checks::programs::words;

libfuzzer_sys::fuzz_target!(init: words::begin(), |bytes: &[u8]| words::run(bytes));
