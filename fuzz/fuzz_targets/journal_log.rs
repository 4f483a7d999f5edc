#![no_main]

use netram_fuzzed::programs::journal_log;

libfuzzer_sys::fuzz_target!(init: journal_log::begin(), |bytes: &[u8]| journal_log::run(bytes));
