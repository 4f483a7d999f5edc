#![no_main]

use netram_fuzz_checks::programs::ublk_request;

libfuzzer_sys::fuzz_target!(init: ublk_request::begin(), |bytes: &[u8]| ublk_request::run(bytes));
