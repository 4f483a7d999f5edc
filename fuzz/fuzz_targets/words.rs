#![no_main]

use netram_fuzzed::programs::words;

libfuzzer_sys::fuzz_target!(init: words::begin(), |bytes: &[u8]| words::run(bytes));
