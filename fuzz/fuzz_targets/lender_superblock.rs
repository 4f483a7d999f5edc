#![no_main]

use netram_fuzz_checks::programs::lender_superblock;

libfuzzer_sys::fuzz_target!(init: lender_superblock::begin(), |bytes: &[u8]| lender_superblock::run(bytes));
