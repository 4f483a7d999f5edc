#![no_main]

use netram_fuzzed::programs::nbd_session;

libfuzzer_sys::fuzz_target!(init: nbd_session::begin(), |bytes: &[u8]| nbd_session::run(bytes));
