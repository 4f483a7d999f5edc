#![no_main]

use netram_fuzz_checks::programs::ups_watch;

libfuzzer_sys::fuzz_target!(init: ups_watch::begin(), |bytes: &[u8]| ups_watch::run(bytes));
