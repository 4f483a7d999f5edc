#![no_main]

use netram_fuzz_checks::programs::view;

libfuzzer_sys::fuzz_target!(init: view::begin(), |bytes: &[u8]| view::run(bytes));
