#![no_main]

use netram_fuzzed::programs::frame;

libfuzzer_sys::fuzz_target!(init: frame::begin(), |bytes: &[u8]| frame::run(bytes));
