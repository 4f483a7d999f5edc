#![no_main]

use netram_fuzz_checks::programs::nbd_request;

libfuzzer_sys::fuzz_target!(init: nbd_request::begin(), |bytes: &[u8]| nbd_request::run(bytes));
