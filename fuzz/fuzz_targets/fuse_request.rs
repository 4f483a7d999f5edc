#![no_main]

use netram_fuzz_checks::programs::fuse_request;

libfuzzer_sys::fuzz_target!(init: fuse_request::begin(), |bytes: &[u8]| fuse_request::run(bytes));
