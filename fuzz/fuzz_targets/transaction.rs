#![no_main]

use netram_fuzz_checks::programs::transaction;

libfuzzer_sys::fuzz_target!(init: transaction::begin(), |bytes: &[u8]| transaction::run(bytes));
