#![no_main]

use netram_fuzz_checks::programs::journal_log;

libfuzzer_sys::fuzz_target!(init: journal_log::begin(), |bytes: &[u8]| journal_log::run(bytes));
