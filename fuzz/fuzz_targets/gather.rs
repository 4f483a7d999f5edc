#![no_main]

use netram_fuzz_checks::programs::gather;

libfuzzer_sys::fuzz_target!(init: gather::begin(), |bytes: &[u8]| gather::run(bytes));
