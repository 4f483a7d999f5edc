#![no_main]

use netram_fuzz_checks::programs::frame;

libfuzzer_sys::fuzz_target!(init: frame::begin(), |bytes: &[u8]| frame::run(bytes));
