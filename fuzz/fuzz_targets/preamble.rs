#![no_main]

use netram_fuzz_checks::programs::preamble;

libfuzzer_sys::fuzz_target!(init: preamble::begin(), |bytes: &[u8]| preamble::run(bytes));
