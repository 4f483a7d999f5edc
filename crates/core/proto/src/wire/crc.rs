//! CRC32C (Castagnoli), from a library that picks the fastest instructions at run time.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of `bytes`: about 8 ns for 128 B, 90 ns for 4 KiB (one memory copy).
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The library's 64-bit result holds a 32-bit CRC in its low half.
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A CRC32C computed incrementally, for bytes that do not lie in one slice.
pub struct Crc(Digest);

impl Crc {
    /// Starts a CRC over no bytes.
    pub fn new() -> Crc {
        Crc(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of all bytes added.
    pub fn finish(self) -> u32 {
        self.0.finalize() as u32
    }
}

impl Default for Crc {
    fn default() -> Crc {
        Crc::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_value_and_pieces_match_the_whole() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        let mut pieces = Crc::new();
        pieces.update(b"1234");
        pieces.update(b"");
        pieces.update(b"56789");
        assert_eq!(pieces.finish(), 0xE306_9283);
    }
}
