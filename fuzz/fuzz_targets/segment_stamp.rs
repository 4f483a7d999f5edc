#![no_main]

use netram_fuzz_checks::programs::segment_stamp;

libfuzzer_sys::fuzz_target!(init: segment_stamp::begin(), |bytes: &[u8]| segment_stamp::run(bytes));
