#![no_main]

use netram_fuzzed::programs::region_node;

libfuzzer_sys::fuzz_target!(init: region_node::begin(), |bytes: &[u8]| region_node::run(bytes));
