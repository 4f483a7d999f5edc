#![no_main]

use netram_fuzz_checks::programs::segment_table;

libfuzzer_sys::fuzz_target!(init: segment_table::begin(), |bytes: &[u8]| segment_table::run(bytes));
