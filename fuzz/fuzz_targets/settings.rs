#![no_main]

use netram_fuzz_checks::programs::settings;

libfuzzer_sys::fuzz_target!(init: settings::begin(), |bytes: &[u8]| settings::run(bytes));
