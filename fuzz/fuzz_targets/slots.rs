#![no_main]

use netram_fuzz_checks::programs::slots;

libfuzzer_sys::fuzz_target!(init: slots::begin(), |bytes: &[u8]| slots::run(bytes));
