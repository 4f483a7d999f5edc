#![no_main]

use netram_fuzz_checks::programs::writer;

libfuzzer_sys::fuzz_target!(init: writer::begin(), |bytes: &[u8]| writer::run(bytes));
