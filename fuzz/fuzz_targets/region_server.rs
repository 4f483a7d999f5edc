#![no_main]

use netram_fuzz_checks::programs::region_server;

libfuzzer_sys::fuzz_target!(init: region_server::begin(), |bytes: &[u8]| region_server::run(bytes));
