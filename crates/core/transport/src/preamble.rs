//! The first 16 bytes that each side of a connection sends, in the clear.
//!
//! ```text
//!      0     1     2     3     4     5     6     7
//!   +-----+-----+-----+-----+-----+-----+-----+-----+
//! 0 |  N     E     T     R     A     M  |  version  |
//!   +-----+-----+-----+-----+-----+-----+-----+-----+
//! 8 |mode |status| oldest    | newest   | key id    |
//!   +-----+-----+-----+-----+-----+-----+-----+-----+
//! ```
//!
//! Numbers are little-endian. `oldest` and `newest` bound the wire versions that the sender speaks. `version`
//! is the wanted one (client) or the chosen one (lender). `mode` is 0 for plain, 1 for Noise with the cluster
//! key. `status` is zero from a client; a lender's other values are reasons of a refusal. `key id` says which
//! key the client has ([`KeyId`](crate::KeyId)); it is zero from a lender, from a client without a key, and
//! from a program before named clients, and only a lender with named clients reads it.
//!
//! From version 2 on, 16 random bytes follow a lender's preamble, unless it refuses.
//!
//! This layout must never change: two programs of any age must be able to tell each other that they do not
//! match. Its contents are not trusted by themselves. Both preambles enter the Noise prologue, so an altered
//! byte fails the handshake. A forged refusal only ends a connection that its sender could have cut anyway.

use std::fmt;

use crate::key_ring::KeyId;

/// The wire version that this build prefers. It covers framing, handshake and frames.
///
/// Version 2 added the lender's nonce, proofs of ownership, and signed fences.
pub const WIRE_VERSION: u16 = 2;
/// The wire versions that this build speaks.
pub const WIRE_VERSIONS: VersionRange = VersionRange {
    oldest: 1,
    newest: WIRE_VERSION,
};

/// Bytes of a preamble.
pub(crate) const PREAMBLE_BYTES: usize = 16;
/// Bytes of the random nonce that follows a lender's preamble. It makes every session id new, so that nothing
/// recorded on another link has a use.
pub(crate) const NONCE_BYTES: usize = 16;

/// Whether a lender that chose `version` sends a nonce after its preamble.
pub(crate) const fn has_nonce(version: u16) -> bool {
    version >= 2
}
pub(crate) const MAGIC: [u8; 6] = *b"NETRAM";

pub(crate) const MODE_PLAIN: u8 = 0;
pub(crate) const MODE_NOISE: u8 = 1;

pub(crate) const STATUS_OK: u8 = 0;
pub(crate) const STATUS_WRONG_VERSION: u8 = 1;
pub(crate) const STATUS_SECURE_REQUIRED: u8 = 2;
pub(crate) const STATUS_INSECURE_REQUIRED: u8 = 3;
pub(crate) const STATUS_BUSY: u8 = 4;
/// Sent in place of Noise message 2, so that the client's operator learns the cause.
pub(crate) const STATUS_WRONG_KEY: u8 = 5;

/// An inclusive range of wire versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionRange {
    /// The oldest version.
    pub oldest: u16,
    /// The newest version.
    pub newest: u16,
}

impl VersionRange {
    /// The newest version that both ranges contain.
    pub fn common(self, other: VersionRange) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether the range contains `version`.
    pub fn contains(self, version: u16) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.oldest == self.newest {
            self.newest.fmt(out)
        } else {
            write!(out, "{} to {}", self.oldest, self.newest)
        }
    }
}

/// A decoded preamble. Mode and status stay numbers, since values of a foreign version are unknown here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) version: u16,
    pub(crate) mode: u8,
    pub(crate) status: u8,
    pub(crate) versions: VersionRange,
    /// The client's key; zero if it names none.
    pub(crate) key_id: u16,
}

impl Preamble {
    /// A preamble of this build.
    pub(crate) fn ours(version: u16, mode: u8, status: u8) -> Preamble {
        Preamble {
            version,
            mode,
            status,
            versions: WIRE_VERSIONS,
            key_id: 0,
        }
    }

    /// A client's preamble, which names the client's key if it has one.
    pub(crate) fn of_client(mode: u8, key: Option<KeyId>) -> Preamble {
        Preamble {
            key_id: key.map_or(0, KeyId::to_wire),
            ..Preamble::ours(WIRE_VERSION, mode, STATUS_OK)
        }
    }

    pub(crate) fn encode(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..8].copy_from_slice(&self.version.to_le_bytes());
        bytes[8] = self.mode;
        bytes[9] = self.status;
        bytes[10..12].copy_from_slice(&self.versions.oldest.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.versions.newest.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.key_id.to_le_bytes());
        bytes
    }

    /// Decodes a preamble; `None` if the sender does not speak netram.
    pub(crate) fn decode(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Preamble> {
        let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let versions = VersionRange {
            oldest: number(10),
            newest: number(12),
        };
        let sound = may_begin_preamble(bytes) && 1 <= versions.oldest && versions.oldest <= versions.newest;
        sound.then_some(Preamble {
            version: number(6),
            mode: bytes[8],
            status: bytes[9],
            versions,
            key_id: number(14),
        })
    }
}

/// Whether `bytes` can be the beginning of a preamble. A foreign program is disconnected at its first wrong
/// byte.
pub(crate) fn may_begin_preamble(bytes: &[u8]) -> bool {
    let length = bytes.len().min(MAGIC.len());
    bytes[..length] == MAGIC[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_fixed_for_ever() {
        let bytes = Preamble::ours(1, MODE_NOISE, STATUS_BUSY).encode();
        assert_eq!(bytes, *b"NETRAM\x01\x00\x01\x04\x01\x00\x02\x00\x00\x00");
        assert_eq!(
            Preamble::decode(&bytes),
            Some(Preamble::ours(1, MODE_NOISE, STATUS_BUSY))
        );
    }

    #[test]
    fn a_foreign_program_is_recognized_by_its_first_wrong_byte() {
        assert!(may_begin_preamble(b""));
        assert!(may_begin_preamble(b"NET"));
        assert!(!may_begin_preamble(b"G"));
        assert!(!may_begin_preamble(b"NETREM"));
        assert_eq!(Preamble::decode(b"GET / HTTP/1.1\r\n"), None);
    }

    #[test]
    fn an_empty_version_range_is_not_netram() {
        let mut bytes = Preamble::ours(1, 0, 0).encode();
        bytes[12] = 0;
        assert_eq!(Preamble::decode(&bytes), None);
        bytes[10] = 0;
        assert_eq!(Preamble::decode(&bytes), None);
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        let versions = |oldest, newest| VersionRange { oldest, newest };
        assert_eq!(versions(1, 3).common(versions(2, 5)), Some(3));
        assert_eq!(versions(2, 5).common(versions(1, 3)), Some(3));
        assert_eq!(versions(1, 1).common(versions(2, 3)), None);
        assert_eq!(versions(1, 3).to_string(), "1 to 3");
        assert_eq!(versions(2, 2).to_string(), "2");
    }
}
