#![no_main]

use netram_fuzz_checks::programs::region_node;

libfuzzer_sys::fuzz_target!(init: region_node::begin(), |bytes: &[u8]| region_node::run(bytes));
