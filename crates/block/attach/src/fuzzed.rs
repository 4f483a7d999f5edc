//! Entry points of the fuzz target `fuzz/checks`: parsers of bytes from the kernel and other processes.

use crate::ublk::wire::fuzz_request;

/// Checks a request of the kernel's ublk driver.
pub fn ublk_request(bytes: &[u8]) {
    fuzz_request(bytes);
}

/// Seeds for [`ublk_request`]: a read, a write, a flush, a discard, zeros.
pub fn ublk_seeds() -> Vec<Vec<u8>> {
    let one = |operation: u32| {
        let fields = [operation.to_ne_bytes(), 8_u32.to_ne_bytes()].concat();
        [&fields[..], &16_u64.to_ne_bytes(), &[0; 8]].concat()
    };
    [0, 1, 2, 3, 5, 5 | 1 << 15, 1 | 1 << 13].map(one).to_vec()
}
