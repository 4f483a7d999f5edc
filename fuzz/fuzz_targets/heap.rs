#![no_main]

use netram_fuzzed::programs::heap;

libfuzzer_sys::fuzz_target!(init: heap::begin(), |bytes: &[u8]| heap::run(bytes));
