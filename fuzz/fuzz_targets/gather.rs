#![no_main]

use netram_fuzzed::programs::gather;

libfuzzer_sys::fuzz_target!(init: gather::begin(), |bytes: &[u8]| gather::run(bytes));
