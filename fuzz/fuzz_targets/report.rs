#![no_main]

use netram_fuzzed::programs::report;

libfuzzer_sys::fuzz_target!(init: report::begin(), |bytes: &[u8]| report::run(bytes));
