#![no_main]

use netram_fuzz_checks::programs::replica_session;

libfuzzer_sys::fuzz_target!(init: replica_session::begin(), |bytes: &[u8]| replica_session::run(bytes));
