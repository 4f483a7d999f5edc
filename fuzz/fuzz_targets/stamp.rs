#![no_main]

use netram_fuzz_checks::programs::stamp;

libfuzzer_sys::fuzz_target!(init: stamp::begin(), |bytes: &[u8]| stamp::run(bytes));
