#![no_main]

use netram_fuzz_checks::programs::member;

libfuzzer_sys::fuzz_target!(init: member::begin(), |bytes: &[u8]| member::run(bytes));
