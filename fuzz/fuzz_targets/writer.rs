#![no_main]

use netram_fuzzed::programs::writer;

libfuzzer_sys::fuzz_target!(init: writer::begin(), |bytes: &[u8]| writer::run(bytes));
