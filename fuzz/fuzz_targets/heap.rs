#![no_main]

use netram_fuzz_checks::programs::heap;

libfuzzer_sys::fuzz_target!(init: heap::begin(), |bytes: &[u8]| heap::run(bytes));
