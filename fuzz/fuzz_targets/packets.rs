#![no_main]

use netram_fuzz_checks::programs::packets;

libfuzzer_sys::fuzz_target!(init: packets::begin(), |bytes: &[u8]| packets::run(bytes));
