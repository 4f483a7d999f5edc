//! Records: the unit of the log, in the ring, at members and on the disk alike.
//!
//! ```text
//!  0  length u32 | crc32c u32          length: the whole record, a multiple of 8
//!  8  lsn u64                          start of this record
//! 16  epoch u32 | chain u32            chain: the predecessor's crc field
//! 24  stable u64                       the writer's stable LSN when it made the record
//! 32  kind u8 | flags u8 | zero u16 | payload u32
//! 40  payload, then the AEAD tag (16) if sealed, then the salt (16) if salted, then zeros to a multiple of 8
//! ```
//!
//! A salted record has 128 in `kind` and counts the salt in `payload`. It names the key that sealed it, so
//! records of any epochs can be read from any position on. Lenders of earlier releases look at neither.
//!
//! The CRC covers bytes 8 to the end and is mixed with the journal's id, so torn, reordered, stale and
//! foreign bytes all end the valid prefix (rule 7). `stable` tells corruption from the log's end (rule 8): a
//! record which says "everything below X was on the disk" proves that a bad record below X is damage.

use core::ops::Range;

use crate::id::{Epoch, EpochSalt, JournalId, Lsn};
use crate::limit::{
    EPOCH_SALT_BYTES, RECORD_ALIGN, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, SEAL_BYTES, SEAL_TAG_BYTES,
};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::RecordKind;

use super::crc::{Crc, crc32c};

const FLAG_SEALED: u8 = 1;
/// Bit of the kind's byte that marks a salted record.
const KIND_SALTED: u8 = 0x80;

/// The journal's contribution to every CRC: a record of another journal fails its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrcSeed(u32);

impl From<JournalId> for CrcSeed {
    fn from(id: JournalId) -> CrcSeed {
        CrcSeed(crc32c(&id.0.to_le_bytes()))
    }
}

/// The LSN at which a record must begin and the CRC to which it must chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainPoint {
    /// Where the record begins.
    pub lsn: Lsn,
    /// The CRC field of the record before it.
    pub chain: u32,
}

/// A record's header, its lengths checked against each other and the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the whole record.
    pub length: usize,
    /// The stored CRC, which the next record chains to.
    pub crc: u32,
    /// The start of the record, as the record says.
    pub lsn: Lsn,
    /// The epoch of its writer.
    pub epoch: Epoch,
    /// The predecessor's CRC.
    pub chain: u32,
    /// Everything below was on the writer's disk when the record was written.
    pub stable: Lsn,
    /// The type of the payload.
    pub kind: RecordKind,
    /// Whether the payload is sealed (encrypted, with a tag behind it).
    pub sealed: bool,
    /// Whether the payload is sealed under the key of the writer's epoch, whose salt follows the tag. Sealed
    /// records of earlier releases have none: they are sealed under the journal's own key.
    pub salted: bool,
    /// Bytes of the payload, without tag, salt and padding.
    pub payload: usize,
}

/// Why bytes are not the expected record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// The lengths contradict each other or the limits.
    Lengths,
    /// The CRC does not match.
    Crc,
    /// The record has another LSN or another predecessor.
    Misplaced,
}

/// Size in the log of a new record with `payload` bytes of payload.
pub const fn record_bytes(payload: usize, sealed: bool) -> usize {
    let seal = if sealed { SEAL_BYTES } else { 0 };
    (RECORD_HEADER_BYTES + payload + seal).next_multiple_of(RECORD_ALIGN)
}

impl RecordHeader {
    /// A header for a new record of `payload` bytes at `link`; if it is sealed, then with a salt.
    /// [`finish_record`] sets its CRC.
    pub fn new(
        link: ChainPoint,
        epoch: Epoch,
        stable: Lsn,
        kind: RecordKind,
        sealed: bool,
        payload: usize,
    ) -> RecordHeader {
        let length = record_bytes(payload, sealed);
        assert!(length <= RECORD_BYTES_MAX);
        assert!(kind.0 & KIND_SALTED == 0, "kinds end at 127");
        RecordHeader {
            length,
            crc: 0,
            lsn: link.lsn,
            epoch,
            chain: link.chain,
            stable,
            kind,
            sealed,
            salted: sealed,
            payload,
        }
    }

    /// Checks a record's header.
    ///
    /// # Errors
    ///
    /// The lengths contradict each other or exceed the limits, or a reserved byte is set.
    pub fn parse(bytes: &[u8; RECORD_HEADER_BYTES]) -> Result<RecordHeader, RecordError> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let sealed = bytes[33] & FLAG_SEALED != 0;
        let salted = bytes[32] & KIND_SALTED != 0;
        // Tag and salt are the last bytes before the padding.
        let salt = if salted { EPOCH_SALT_BYTES } else { 0 };
        let tag = if sealed { SEAL_TAG_BYTES } else { 0 };
        let Some(payload) = (u32_at(36) as usize).checked_sub(salt) else {
            return Err(RecordError::Lengths);
        };
        let header = RecordHeader {
            length: u32_at(0) as usize,
            crc: u32_at(4),
            lsn: Lsn(u64_at(8)),
            epoch: Epoch(u32_at(16)),
            chain: u32_at(20),
            stable: Lsn(u64_at(24)),
            kind: RecordKind(bytes[32] & !KIND_SALTED),
            sealed,
            salted,
            payload,
        };
        let whole = RECORD_HEADER_BYTES + payload.min(RECORD_BYTES_MAX) + tag + salt;
        let lengths_agree = header.length <= RECORD_BYTES_MAX
            && payload <= RECORD_BYTES_MAX
            && header.length == whole.next_multiple_of(RECORD_ALIGN)
            && (sealed || !salted)
            && bytes[33] & !FLAG_SEALED == 0
            && bytes[34] == 0
            && bytes[35] == 0;
        if lengths_agree {
            Ok(header)
        } else {
            Err(RecordError::Lengths)
        }
    }

    /// Writes the header, with a zero CRC, at the front of `record`.
    pub fn write(&self, record: &mut [u8]) {
        assert_eq!(record.len(), self.length);
        record[0..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        record[4..8].fill(0);
        record[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        record[16..20].copy_from_slice(&self.epoch.0.to_le_bytes());
        record[20..24].copy_from_slice(&self.chain.to_le_bytes());
        record[24..32].copy_from_slice(&self.stable.0.to_le_bytes());
        let (mark, salt) = match self.salted {
            true => (KIND_SALTED, EPOCH_SALT_BYTES),
            false => (0, 0),
        };
        record[32] = self.kind.0 | mark;
        record[33] = if self.sealed { FLAG_SEALED } else { 0 };
        record[34..36].fill(0);
        record[36..40].copy_from_slice(&((self.payload + salt) as u32).to_le_bytes());
    }

    /// Where the salt lies in the record, if it has one.
    pub fn salt_range(&self) -> Option<Range<usize>> {
        let start = RECORD_HEADER_BYTES + self.payload + SEAL_TAG_BYTES;
        self.salted.then_some(start..start + EPOCH_SALT_BYTES)
    }

    /// The salt of the key that sealed `record`, which has this header; `None` if it is the journal's own.
    pub fn salt(&self, record: &[u8]) -> Option<EpochSalt> {
        let mut salt = EpochSalt([0; EPOCH_SALT_BYTES]);
        salt.0.copy_from_slice(record.get(self.salt_range()?)?);
        Some(salt)
    }

    /// Where the next record begins.
    pub fn next(&self) -> Lsn {
        self.lsn.plus(self.length as u64)
    }

    /// The position and chain value of the next record.
    pub fn next_point(&self) -> ChainPoint {
        ChainPoint {
            lsn: self.next(),
            chain: self.crc,
        }
    }

    /// Whether the record has the position and chain value of `link`. Its CRC is a separate question.
    pub fn stands_at(&self, link: ChainPoint) -> bool {
        self.lsn == link.lsn && self.chain == link.chain
    }

    /// The check of [`RecordHeader::stands_at`], with a planted fault.
    pub(crate) fn follows(&self, link: ChainPoint, planted: FaultSwitch) -> bool {
        self.stands_at(link) || self.lsn == link.lsn && planted.is(PlantedFault::ChainUnchecked)
    }

    /// Whether the record's CRC agrees with `body`, the CRC of bytes 8 to the end.
    pub fn matches(&self, body: u32, seed: CrcSeed) -> bool {
        self.crc == body ^ seed.0
    }
}

/// Computes and stores the CRC of a record that is otherwise complete. Returns it: the next record's chain
/// value.
pub fn finish_record(record: &mut [u8], seed: CrcSeed) -> u32 {
    assert!(record.len() >= RECORD_HEADER_BYTES);
    let crc = crc32c(&record[8..]) ^ seed.0;
    record[4..8].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The result of checking the front of some log bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanStep {
    /// A whole record whose CRC and chain are correct.
    Record(RecordHeader),
    /// The front may be a record; this many bytes are needed to decide.
    Incomplete(usize),
    /// The front is not a record of this log.
    Bad(RecordError),
}

/// Checks the record at the front of `bytes`, which must have the position and chain value of `link`.
pub fn scan_step(bytes: &[u8], link: ChainPoint, seed: CrcSeed, planted: FaultSwitch) -> ScanStep {
    let Some(front) = bytes.first_chunk::<RECORD_HEADER_BYTES>() else {
        return ScanStep::Incomplete(RECORD_HEADER_BYTES);
    };
    let header = match RecordHeader::parse(front) {
        Ok(header) => header,
        Err(error) => return ScanStep::Bad(error),
    };
    if !header.follows(link, planted) {
        return ScanStep::Bad(RecordError::Misplaced);
    }
    let Some(record) = bytes.get(..header.length) else {
        return ScanStep::Incomplete(header.length);
    };
    if header.matches(crc32c(&record[8..]), seed) || planted.is(PlantedFault::TornRecordAccepted) {
        ScanStep::Record(header)
    } else {
        ScanStep::Bad(RecordError::Crc)
    }
}

/// A record that has passed every check, with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct CheckedRecord<'a> {
    /// The header.
    pub header: RecordHeader,
    /// The whole record.
    pub bytes: &'a [u8],
}

impl<'a> CheckedRecord<'a> {
    /// The payload; with the AEAD tag behind it if the record is sealed.
    pub fn payload(&self) -> &'a [u8] {
        let tag = if self.header.sealed { SEAL_TAG_BYTES } else { 0 };
        &self.bytes[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + self.header.payload + tag]
    }
}

/// Checks the CRC of one record whose bytes come in pieces. The pieces must add up to the record.
pub fn check_record<'a>(
    header: &RecordHeader,
    mut pieces: impl Iterator<Item = &'a [u8]>,
    seed: CrcSeed,
    planted: FaultSwitch,
) -> bool {
    let mut crc = Crc::new();
    let mut skip = 8;
    let mut seen = 0;
    for piece in &mut pieces {
        seen += piece.len();
        let skipped = skip.min(piece.len());
        skip -= skipped;
        crc.update(&piece[skipped..]);
    }
    assert_eq!(seen, header.length);
    header.matches(crc.finish(), seed) || planted.is(PlantedFault::TornRecordAccepted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const SEED: CrcSeed = CrcSeed(0x1234_5678);

    fn record(link: ChainPoint, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader::new(link, Epoch(3), Lsn(8), RecordKind(16), false, payload.len());
        let mut bytes = vec![0; header.length];
        header.write(&mut bytes);
        bytes[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        finish_record(&mut bytes, SEED);
        bytes
    }

    #[test]
    fn a_record_survives_encoding_and_its_successor_chains() {
        let first = ChainPoint {
            lsn: Lsn(64),
            chain: 7,
        };
        let mut log = record(first, b"abc");
        let ScanStep::Record(header) = scan_step(&log, first, SEED, FaultSwitch::NONE) else {
            panic!("not a record")
        };
        assert_eq!(
            (header.payload, header.length, header.kind),
            (3, 48, RecordKind(16))
        );
        log.extend(record(header.next_point(), b""));
        assert!(matches!(
            scan_step(&log[48..], header.next_point(), SEED, FaultSwitch::NONE),
            ScanStep::Record(_)
        ));
    }

    /// A sealed record names its key's salt; one of an earlier release names none and has another length.
    #[test]
    fn a_sealed_record_carries_its_salt_and_earlier_ones_are_read() {
        let link = ChainPoint::default();
        let new = RecordHeader::new(link, Epoch(1), Lsn(0), RecordKind(127), true, 11);
        let old = RecordHeader {
            salted: false,
            length: 72,
            ..new
        };
        assert_eq!(new.length, 88);
        for header in [new, old] {
            let mut bytes = vec![0; header.length];
            header.write(&mut bytes);
            if let Some(range) = header.salt_range() {
                assert_eq!(range, 67..83);
                bytes[range].fill(9);
            }
            let read = RecordHeader::parse(bytes.first_chunk().unwrap());
            assert_eq!(read, Ok(header));
            let salt = header.salted.then_some(EpochSalt([9; 16]));
            assert_eq!(header.salt(&bytes), salt);
        }
        // A salt without a seal, or with fewer bytes than a salt.
        for (at, value) in [(33, 0), (36, 15)] {
            let mut bytes = vec![0; new.length];
            new.write(&mut bytes);
            bytes[at] = value;
            let read = RecordHeader::parse(bytes.first_chunk().unwrap());
            assert_eq!(read, Err(RecordError::Lengths), "byte {at}");
        }
    }

    #[test]
    fn any_flipped_bit_ends_the_prefix() {
        let link = ChainPoint {
            lsn: Lsn(64),
            chain: 7,
        };
        let good = record(link, b"some payload");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                !matches!(
                    scan_step(&bad, link, SEED, FaultSwitch::NONE),
                    ScanStep::Record(_)
                ),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_cut_record_is_incomplete_and_says_how_much_it_needs() {
        let link = ChainPoint {
            lsn: Lsn(64),
            chain: 7,
        };
        let good = record(link, b"some payload");
        for cut in 0..good.len() {
            let needed = if cut < RECORD_HEADER_BYTES {
                RECORD_HEADER_BYTES
            } else {
                good.len()
            };
            assert_eq!(
                scan_step(&good[..cut], link, SEED, FaultSwitch::NONE),
                ScanStep::Incomplete(needed)
            );
        }
    }

    #[test]
    fn stale_and_foreign_records_do_not_check() {
        let link = ChainPoint {
            lsn: Lsn(64),
            chain: 7,
        };
        let good = record(link, b"some payload");
        let elsewhere = ChainPoint {
            lsn: Lsn(128),
            ..link
        };
        assert_eq!(
            scan_step(&good, elsewhere, SEED, FaultSwitch::NONE),
            ScanStep::Bad(RecordError::Misplaced)
        );
        let other = ChainPoint { chain: 8, ..link };
        assert_eq!(
            scan_step(&good, other, SEED, FaultSwitch::NONE),
            ScanStep::Bad(RecordError::Misplaced)
        );
        assert_eq!(
            scan_step(&good, link, CrcSeed(1), FaultSwitch::NONE),
            ScanStep::Bad(RecordError::Crc)
        );
    }

    #[test]
    fn a_record_in_pieces_checks_like_a_whole_one() {
        let link = ChainPoint {
            lsn: Lsn(64),
            chain: 7,
        };
        let good = record(link, b"some payload that is cut somewhere");
        let ScanStep::Record(header) = scan_step(&good, link, SEED, FaultSwitch::NONE) else {
            panic!("not a record")
        };
        for cut in 0..good.len() {
            let (left, right) = good.split_at(cut);
            assert!(check_record(
                &header,
                [left, right].into_iter(),
                SEED,
                FaultSwitch::NONE
            ));
        }
    }
}
