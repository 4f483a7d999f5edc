#![no_main]

use netram_fuzzed::programs::handshake;

libfuzzer_sys::fuzz_target!(init: handshake::begin(), |bytes: &[u8]| handshake::run(bytes));
