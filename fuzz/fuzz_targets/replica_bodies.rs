#![no_main]

use netram_fuzz_checks::programs::replica_bodies;

libfuzzer_sys::fuzz_target!(init: replica_bodies::begin(), |bytes: &[u8]| replica_bodies::run(bytes));
