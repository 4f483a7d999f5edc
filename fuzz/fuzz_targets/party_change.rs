#![no_main]

use netram_fuzz_checks::programs::party_change;

libfuzzer_sys::fuzz_target!(init: party_change::begin(), |bytes: &[u8]| party_change::run(bytes));
