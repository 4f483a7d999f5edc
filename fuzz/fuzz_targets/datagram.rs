#![no_main]

use netram_fuzz_checks::programs::datagram;

libfuzzer_sys::fuzz_target!(init: datagram::begin(), |bytes: &[u8]| datagram::run(bytes));
