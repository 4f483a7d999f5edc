#![no_main]

use netram_fuzz_checks::programs::catalog;

libfuzzer_sys::fuzz_target!(init: catalog::begin(), |bytes: &[u8]| catalog::run(bytes));
