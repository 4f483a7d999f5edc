#![no_main]

use netram_fuzz_checks::programs::deposit_pages;

libfuzzer_sys::fuzz_target!(init: deposit_pages::begin(), |bytes: &[u8]| deposit_pages::run(bytes));
