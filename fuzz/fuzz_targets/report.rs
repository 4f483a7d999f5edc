#![no_main]

use netram_fuzz_checks::programs::report;

libfuzzer_sys::fuzz_target!(init: report::begin(), |bytes: &[u8]| report::run(bytes));
