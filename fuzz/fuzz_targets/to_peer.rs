#![no_main]

use netram_fuzz_checks::programs::to_peer;

libfuzzer_sys::fuzz_target!(init: to_peer::begin(), |bytes: &[u8]| to_peer::run(bytes));
