//! The layout of a spill's file: a head, and for each journal an entry and the bytes of its window.
//!
//! ```text
//! head, a block of 4,096 bytes
//!   0  N E T R A M S P
//!   8  version, 4             | entries, 4
//!  16  incarnation of the memory, 8
//!  24  bytes of the file without its last padding, 8
//!  32  random number of this file, 8
//!  40  when it was written, in seconds since 1970, 8
//!  48  bytes of the lender's name, 1; the name, at most 255
//! 304  when it was written, in seconds of the machine's uptime, 8
//! 4092 CRC32C of the rest
//!
//! entry, 320 bytes
//!   0  the newest copy of the journal's slot, 128
//! 128  signature of its fence, 64
//! 192  number of the file, 8
//! 200  bytes of the window that follow, 8
//! 208  who pays: bytes of the name, 1; the name, 32
//! 241  what the client calls it: bytes of the name, 1; the name, 64
//! 306  zeros
//! 316  CRC32C of the rest, 4
//! bytes of the window, then CRC32C of the file's number and these, 4
//! ```
//!
//! The bytes are `trim..held`, as they were on the wire. The chunks that a slot's copy names mean nothing
//! here. A window without chunks is in a file of its own.

use netram_clients::file::NAME_BYTES_MAX;
use netram_proto::id::Incarnation;
use netram_proto::limit::JOURNAL_NAME_BYTES_MAX;
use netram_proto::owner::{FenceSignature, SIGNATURE_BYTES};
use netram_proto::wire::{Crc, crc32c};

use crate::slot::{JournalNames, SlotState, StoredSignature, decode, encode};

/// Bytes of the head.
pub(crate) const HEAD_BYTES: usize = 4096;
/// Bytes of an entry.
pub(crate) const ENTRY_BYTES: usize = 320;
/// Bytes of a lender's longest name.
pub(crate) const LENDER_NAME_BYTES_MAX: usize = 255;
const MAGIC: [u8; 8] = *b"NETRAMSP";
const VERSION: u32 = 2;
/// Bytes of the checksum behind a window's bytes.
pub(crate) const CRC_BYTES: usize = 4;
/// Offset of the machine's uptime in the head.
const UPTIME_AT: usize = 304;
const _: () = assert!(49 + LENDER_NAME_BYTES_MAX <= UPTIME_AT);
const SIGNATURE_AT: usize = 128;
const NUMBER_AT: usize = SIGNATURE_AT + SIGNATURE_BYTES;
const BYTES_AT: usize = NUMBER_AT + 8;
const PAYER_AT: usize = BYTES_AT + 8;
const NAME_AT: usize = PAYER_AT + 1 + NAME_BYTES_MAX;
const CRC_AT: usize = ENTRY_BYTES - CRC_BYTES;
const _: () = assert!(NAME_AT + 1 + JOURNAL_NAME_BYTES_MAX <= CRC_AT);

/// The head of a spill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillHead {
    pub(crate) entries: u32,
    pub(crate) incarnation: Incarnation,
    pub(crate) length: u64,
    pub(crate) number: u64,
    pub(crate) written_s: u64,
    pub(crate) uptime_s: u64,
    pub(crate) lender: String,
}

impl SpillHead {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.entries.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.written_s.to_le_bytes());
        let name = &self.lender.as_bytes()[..self.lender.len().min(LENDER_NAME_BYTES_MAX)];
        bytes[48] = name.len() as u8;
        bytes[49..49 + name.len()].copy_from_slice(name);
        bytes[UPTIME_AT..UPTIME_AT + 8].copy_from_slice(&self.uptime_s.to_le_bytes());
        let crc = crc32c(&bytes[..HEAD_BYTES - 4]);
        bytes[HEAD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The head in these bytes; `None` if they fail their check.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<SpillHead> {
        let sound = bytes[..8] == MAGIC
            && u32_at(bytes, 8) == VERSION
            && u32_at(bytes, HEAD_BYTES - 4) == crc32c(&bytes[..HEAD_BYTES - 4]);
        let name = bytes[49..].get(..usize::from(bytes[48]))?;
        sound.then(|| SpillHead {
            entries: u32_at(bytes, 12),
            incarnation: Incarnation(u64_at(bytes, 16)),
            length: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            written_s: u64_at(bytes, 40),
            uptime_s: u64_at(bytes, UPTIME_AT),
            lender: String::from_utf8_lossy(name).into_owned(),
        })
    }

    /// The time at which a client was heard last, in seconds of this run of the machine, which has run for
    /// `uptime_s` at `now_s` seconds since 1970. A time before that run is its first second.
    pub(crate) fn heard_at(&self, last_contact: u64, now_s: u64, uptime_s: u64) -> u64 {
        if last_contact == 0 {
            return 0;
        }
        let age = self.uptime_s.saturating_sub(last_contact) + now_s.saturating_sub(self.written_s);
        uptime_s.saturating_sub(age).max(1)
    }

    /// Bytes of a spill with `slots` journals and `memory` bytes of windows.
    pub(crate) fn room(memory: u64, slots: u32) -> u64 {
        let entries = u64::from(slots) * (ENTRY_BYTES + CRC_BYTES) as u64;
        (HEAD_BYTES as u64 + entries + memory).next_multiple_of(HEAD_BYTES as u64)
    }

    /// The version of a spill that this release cannot read, if it is one.
    pub(crate) fn other_version(bytes: &[u8; HEAD_BYTES]) -> Option<u32> {
        let version = u32_at(bytes, 8);
        (bytes[..8] == MAGIC && version != VERSION).then_some(version)
    }
}

/// One journal in a spill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillEntry {
    pub(crate) state: SlotState,
    pub(crate) names: JournalNames,
    /// Bytes of the window that follow.
    pub(crate) bytes: u64,
}

impl SpillEntry {
    pub(crate) fn encode(&self, number: u64) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let signature = self.state.member.signature;
        bytes[..SIGNATURE_AT].copy_from_slice(&encode(1, &self.state, &StoredSignature::default()));
        bytes[SIGNATURE_AT..NUMBER_AT].copy_from_slice(&signature.0);
        bytes[NUMBER_AT..BYTES_AT].copy_from_slice(&number.to_le_bytes());
        bytes[BYTES_AT..PAYER_AT].copy_from_slice(&self.bytes.to_le_bytes());
        for (at, name) in [(PAYER_AT, &self.names.payer), (NAME_AT, &self.names.name)] {
            bytes[at] = name.len() as u8;
            bytes[at + 1..][..name.len()].copy_from_slice(name.as_bytes());
        }
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// The entry in these bytes of file `number`; `None` if they fail their check or are another file's.
    pub(crate) fn decode(bytes: &[u8; ENTRY_BYTES], number: u64) -> Option<SpillEntry> {
        if u32_at(bytes, CRC_AT) != crc32c(&bytes[..CRC_AT]) || u64_at(bytes, NUMBER_AT) != number {
            return None;
        }
        let mut state = decode(&bytes[..SIGNATURE_AT])?.state;
        state.member.signature = FenceSignature::parse(&bytes[SIGNATURE_AT..NUMBER_AT])?;
        let name = |at: usize, bytes_max: usize| {
            let name = bytes[at + 1..][..bytes_max].get(..usize::from(bytes[at]))?;
            Some(String::from_utf8_lossy(name).into_owned())
        };
        Some(SpillEntry {
            state,
            names: JournalNames {
                payer: name(PAYER_AT, NAME_BYTES_MAX)?,
                name: name(NAME_AT, JOURNAL_NAME_BYTES_MAX)?,
            },
            bytes: u64_at(bytes, BYTES_AT),
        })
    }
}

/// The checksum of a window's bytes in file `number`, to be continued with these.
pub(crate) fn window_crc(number: u64) -> Crc {
    let mut crc = Crc::new();
    crc.update(&number.to_le_bytes());
    crc
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
    use netram_proto::member::MemberState;

    use super::*;

    fn entry() -> SpillEntry {
        SpillEntry {
            state: SlotState {
                journal: JournalId(5 << 90 | 3),
                member: MemberState {
                    epoch: Epoch(4),
                    writer: WriterId(9),
                    signature: FenceSignature([7; SIGNATURE_BYTES]),
                    joined: true,
                    window_epoch: Epoch(4),
                    generation: 2,
                    trim: Lsn(64),
                    held: Lsn(164),
                    received: Lsn(164),
                    chain: 5,
                    ended: false,
                    closed: false,
                    spilled: true,
                },
                window_bytes: 8192,
                chunks: 2,
                list_crc: 0,
                last_contact: 77,
                incarnation: Incarnation(6),
            },
            names: JournalNames {
                payer: "a".repeat(NAME_BYTES_MAX),
                name: "b".repeat(JOURNAL_NAME_BYTES_MAX),
            },
            bytes: 100,
        }
    }

    #[test]
    fn head_and_entry_come_back_and_no_flipped_bit_does() {
        let head = SpillHead {
            entries: 3,
            incarnation: Incarnation(8),
            length: 9000,
            number: 77,
            written_s: 1_700_000_000,
            uptime_s: 9,
            lender: "n".repeat(LENDER_NAME_BYTES_MAX),
        };
        let bytes = head.encode();
        assert_eq!(SpillHead::decode(&bytes), Some(head.clone()));
        // A client heard 5 s before the spill, which was taken up 10 s later.
        assert_eq!(head.heard_at(4, 1_700_000_010, 100), 85);
        assert_eq!(head.heard_at(4, 1_700_000_010, 3), 1);
        assert_eq!(head.heard_at(0, 1_700_000_010, 100), 0);
        for bit in (0..HEAD_BYTES * 8).step_by(7) {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SpillHead::decode(&bad), None, "bit {bit}");
        }
        let bytes = entry().encode(77);
        assert_eq!(SpillEntry::decode(&bytes, 77), Some(entry()));
        assert_eq!(SpillEntry::decode(&bytes, 78), None, "an entry of another file");
        for bit in 0..ENTRY_BYTES * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SpillEntry::decode(&bad, 77), None, "bit {bit}");
        }
    }
}
