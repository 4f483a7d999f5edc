#![no_main]

use netram_fuzz_checks::programs::owner;

libfuzzer_sys::fuzz_target!(init: owner::begin(), |bytes: &[u8]| owner::run(bytes));
