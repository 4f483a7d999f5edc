#![no_main]

use netram_fuzz_checks::programs::nbd_session;

libfuzzer_sys::fuzz_target!(init: nbd_session::begin(), |bytes: &[u8]| nbd_session::run(bytes));
