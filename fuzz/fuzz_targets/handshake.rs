#![no_main]

use netram_fuzz_checks::programs::handshake;

libfuzzer_sys::fuzz_target!(init: handshake::begin(), |bytes: &[u8]| handshake::run(bytes));
