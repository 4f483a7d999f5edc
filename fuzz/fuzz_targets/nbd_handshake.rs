#![no_main]

use netram_fuzz_checks::programs::nbd_handshake;

libfuzzer_sys::fuzz_target!(init: nbd_handshake::begin(), |bytes: &[u8]| nbd_handshake::run(bytes));
