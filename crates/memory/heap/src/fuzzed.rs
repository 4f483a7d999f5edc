//! A heap's parts, for fuzzers (`fuzz/checks`) and nobody else.

use crate::layout::checksum_descriptor;

/// A descriptor that checks, whatever it says.
pub fn descriptor(page: u32, pages: u32, kind: u8, class: u8) -> [u8; 8] {
    checksum_descriptor(page, pages, kind, class)
}
