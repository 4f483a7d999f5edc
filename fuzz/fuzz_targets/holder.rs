#![no_main]

use netram_fuzzed::programs::holder;

libfuzzer_sys::fuzz_target!(init: holder::begin(), |bytes: &[u8]| holder::run(bytes));
