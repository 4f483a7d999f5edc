//! The first page of a store: the incarnation of the memory, and its layout.
//!
//! ```text
//!        0     1     2     3     4     5     6     7
//!      +-----+-----+-----+-----+-----+-----+-----+-----+
//!   0  |  N     E     T     R     A     M     S     T   |
//!   8  | version               | slots                  |
//!  16  | incarnation                                    |
//!  24  | boot id of the kernel                          |
//!  32  |                                                |
//!  40  | bytes of a chunk                               |
//!  48  | chunks                                         |
//!  56  | bytes of a slot                                |
//!  64  | zero                  | CRC32C of bytes 0-67   |
//!      +-----+-----+-----+-----+-----+-----+-----+-----+
//! ```
//!
//! Version 2 is that of a store that is closed, or that began with a spill. An earlier release, which knows
//! neither, does not start with it.
//!
//! ```text
//!  64  | 1: closed             | zero                   |
//!  72  | incarnation whose spill it took up; 0: none    |
//!  80  | zero                  | CRC32C of bytes 0-83   |
//! ```
//!
//! It is written last when a store is created, so a store that has one is complete.

use std::io;

use netram_proto::id::Incarnation;
use netram_proto::wire::crc32c;

/// Bytes reserved for the superblock: a page.
pub(crate) const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of the superblock that are used.
pub(crate) const BYTES: usize = 88;
const MAGIC: [u8; 8] = *b"NETRAMST";
/// The version of a store that was never spilled, and its bytes.
const PLAIN: (u32, usize) = (1, 72);
/// The version of a store that is closed or took up a spill.
const SPILLED: (u32, usize) = (2, BYTES);

/// The layout of the store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreGeometry {
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) chunks: u64,
}

impl StoreGeometry {
    /// Offset of the first chunk.
    pub(crate) fn chunks_at(&self) -> u64 {
        SUPERBLOCK_BYTES + u64::from(self.slots) * self.slot_bytes
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.chunks_at() + self.chunks * self.chunk_bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreSuperblock {
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: u128,
    pub(crate) geometry: StoreGeometry,
    /// Whether the store is being spilled, or was: its memory acknowledges nothing more.
    pub(crate) closed: bool,
    /// The incarnation whose spill the store began with.
    pub(crate) took_up: Option<Incarnation>,
}

impl StoreSuperblock {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        let (version, length) = match (self.closed, self.took_up) {
            (false, None) => PLAIN,
            _ => SPILLED,
        };
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.geometry.slots.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.boot.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.geometry.chunk_bytes.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.geometry.chunks.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.geometry.slot_bytes.to_le_bytes());
        if version == SPILLED.0 {
            bytes[64] = u8::from(self.closed);
            bytes[72..80].copy_from_slice(&self.took_up.unwrap_or_default().0.to_le_bytes());
        }
        let crc = crc32c(&bytes[..length - 4]);
        bytes[length - 4..length].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<StoreSuperblock> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let length = superblock_bytes(bytes);
        let spilled = length == SPILLED.1;
        let version = if spilled { SPILLED.0 } else { PLAIN.0 };
        let sound =
            bytes[..8] == MAGIC && u32_at(8) == version && u32_at(length - 4) == crc32c(&bytes[..length - 4]);
        let took_up = Incarnation(if spilled { u64_at(72) } else { 0 });
        sound.then(|| StoreSuperblock {
            incarnation: Incarnation(u64_at(16)),
            boot: u128::from(u64_at(24)) | u128::from(u64_at(32)) << 64,
            geometry: StoreGeometry {
                slots: u32_at(12),
                slot_bytes: u64_at(56),
                chunk_bytes: u64_at(40),
                chunks: u64_at(48),
            },
            closed: spilled && bytes[64] != 0,
            took_up: (took_up != Incarnation(0)).then_some(took_up),
        })
    }
}

/// Bytes that the checksum of a superblock ends at, by its version.
pub(crate) fn superblock_bytes(bytes: &[u8; BYTES]) -> usize {
    match u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) == SPILLED.0 {
        true => SPILLED.1,
        false => PLAIN.1,
    }
}

/// The format version of a superblock that this release cannot read, if it is one.
pub(crate) fn other_version(bytes: &[u8; BYTES]) -> Option<u32> {
    let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    (bytes[..8] == MAGIC && ![PLAIN.0, SPILLED.0].contains(&version)).then_some(version)
}

/// The id of this boot of the kernel: memory files do not outlive it, but copies of them might.
pub(crate) fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(io::Error::other)
}

/// A random incarnation from the kernel, never zero.
pub(crate) fn fresh_incarnation() -> io::Result<Incarnation> {
    let mut random = std::fs::File::open("/dev/urandom")?;
    loop {
        let mut bytes = [0; 8];
        io::Read::read_exact(&mut random, &mut bytes)?;
        let number = u64::from_le_bytes(bytes);
        if number != 0 {
            return Ok(Incarnation(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_comes_back_and_no_flipped_bit_does() {
        let plain = StoreSuperblock {
            incarnation: Incarnation(7),
            boot: u128::MAX - 3,
            geometry: StoreGeometry {
                slots: 4,
                slot_bytes: 4096,
                chunk_bytes: 8192,
                chunks: 9,
            },
            closed: false,
            took_up: None,
        };
        let closed = StoreSuperblock {
            closed: true,
            took_up: Some(Incarnation(9)),
            ..plain
        };
        for (block, length) in [(plain, PLAIN.1), (closed, SPILLED.1)] {
            let bytes = block.encode();
            assert_eq!(StoreSuperblock::decode(&bytes), Some(block));
            for bit in 0..length * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(StoreSuperblock::decode(&bad), None, "bit {bit}");
            }
        }
    }
}
