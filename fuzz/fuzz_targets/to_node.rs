#![no_main]

use netram_fuzz_checks::programs::to_node;

libfuzzer_sys::fuzz_target!(init: to_node::begin(), |bytes: &[u8]| to_node::run(bytes));
