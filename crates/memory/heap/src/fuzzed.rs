//! Entry points for fuzzers (`fuzz/checks`) only.

use crate::layout::checksum_descriptor;

/// A page descriptor with these fields and a correct checksum.
pub fn descriptor(page: u32, pages: u32, kind: u8, class: u8) -> [u8; 8] {
    checksum_descriptor(page, pages, kind, class)
}
