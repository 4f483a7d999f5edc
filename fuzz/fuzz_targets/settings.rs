#![no_main]

use netram_fuzzed::programs::settings;

libfuzzer_sys::fuzz_target!(init: settings::begin(), |bytes: &[u8]| settings::run(bytes));
