#![no_main]

use netram_fuzz_checks::programs::holder;

libfuzzer_sys::fuzz_target!(init: holder::begin(), |bytes: &[u8]| holder::run(bytes));
