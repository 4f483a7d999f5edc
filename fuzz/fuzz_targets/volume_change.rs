#![no_main]

use netram_fuzz_checks::programs::volume_change;

libfuzzer_sys::fuzz_target!(init: volume_change::begin(), |bytes: &[u8]| volume_change::run(bytes));
