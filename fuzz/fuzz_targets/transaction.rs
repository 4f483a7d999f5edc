#![no_main]

use netram_fuzzed::programs::transaction;

libfuzzer_sys::fuzz_target!(init: transaction::begin(), |bytes: &[u8]| transaction::run(bytes));
