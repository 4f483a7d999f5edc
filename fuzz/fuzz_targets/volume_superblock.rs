#![no_main]

use netram_fuzz_checks::programs::volume_superblock;

libfuzzer_sys::fuzz_target!(init: volume_superblock::begin(), |bytes: &[u8]| volume_superblock::run(bytes));
