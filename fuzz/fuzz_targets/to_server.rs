#![no_main]

use netram_fuzz_checks::programs::to_server;

libfuzzer_sys::fuzz_target!(init: to_server::begin(), |bytes: &[u8]| to_server::run(bytes));
