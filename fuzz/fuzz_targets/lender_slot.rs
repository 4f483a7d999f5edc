#![no_main]

use netram_fuzz_checks::programs::lender_slot;

libfuzzer_sys::fuzz_target!(init: lender_slot::begin(), |bytes: &[u8]| lender_slot::run(bytes));
