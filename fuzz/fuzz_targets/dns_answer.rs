#![no_main]

use netram_fuzz_checks::programs::dns_answer;

libfuzzer_sys::fuzz_target!(init: dns_answer::begin(), |bytes: &[u8]| dns_answer::run(bytes));
