#![no_main]

use netram_fuzz_checks::programs::cluster_file;

libfuzzer_sys::fuzz_target!(init: cluster_file::begin(), |bytes: &[u8]| cluster_file::run(bytes));
