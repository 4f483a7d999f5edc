#![no_main]

use netram_fuzz_checks::programs::loader_header;

libfuzzer_sys::fuzz_target!(init: loader_header::begin(), |bytes: &[u8]| loader_header::run(bytes));
