//! The stamp: which log a segment belongs to, and how far that log has been applied to it.
//!
//! A log's records hold values, not times. Applied to a segment that another log, or the original of this
//! log, has changed since, they replace acknowledged bytes with old ones. So each log leaves a stamp on the
//! segment *before* it writes there, and records the stamp in its segment table before it leaves it. The
//! stamp is never stored in the segment's bytes, which belong to the user. A stamp that the log has never
//! recorded shows that another log is newer.
//!
//! Every stamp has a random id: two copies of one log that continue separately never leave the same one.
//! `docs/design/rvm.md` draws the bytes and argues each case.

use netram_proto::id::{JournalId, Lsn};

/// Random id of one stamp. Zeros mean none.
pub type StampId = [u8; 16];

/// Bytes of a stamp.
pub(crate) const STAMP_BYTES: usize = 320;
const CRC_AT: usize = 72;
const TABLE_AT: usize = 80;
const TABLE_BYTES_MAX: usize = STAMP_BYTES - TABLE_AT;
const MAGIC: [u8; 8] = *b"NRAMSTMP";
const VERSION: u16 = 1;
const OPEN: u16 = 1;

/// Mark of a log on a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentStamp {
    /// Random id of the stamp.
    pub id: StampId,
    /// Journal of the log.
    pub journal: JournalId,
    /// Generation of the previous stamp plus one, whichever log left that one.
    pub generation: u64,
    /// Every record of the log that was written to the segment ends at or below this.
    pub applied: Lsn,
    /// The log may have records that are not applied to the segment.
    pub open: bool,
    /// Number of the file that the stamp was left on, which no copy of the file has. Zero if unknown.
    pub file: u64,
    /// Path of the log's segment table, as given by the program; a long path loses its beginning.
    pub table: String,
}

/// The stamps that a log has recorded for one segment: the previous one, and the one it was about to leave.
/// After a crash either may be on the segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StampHistory {
    /// Id of the previous stamp; zeros if there was none.
    pub(crate) before: StampId,
    /// Id of the stamp that the log leaves; zeros if the log has never left one.
    pub(crate) written: StampId,
    pub(crate) generation: u64,
    /// The stamp left last says that the log may have records that are not applied.
    pub(crate) open: bool,
}

/// Relation of a log to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentOwnership {
    /// The log is the last one that changed the segment, or the last one was closed and has nothing left to
    /// apply.
    Current,
    /// Another log, or another copy of this one, has changed the segment since.
    Overtaken,
    /// Another log, or another copy of this one, has records that are not applied to the segment.
    OwnedByOtherLog,
    /// The segment is in a state from before this log's last change.
    Older,
    /// This log has left a stamp, but the segment has none.
    Lost,
}

/// Relation of the log of `journal`, which ends at `end` and has recorded the stamps `known`, to a segment
/// with the stamp `found`. `unapplied` says that the log has records that change the segment.
pub(crate) fn ownership(
    known: &StampHistory,
    found: Option<&SegmentStamp>,
    journal: JournalId,
    end: Lsn,
    unapplied: bool,
) -> SegmentOwnership {
    let Some(found) = found else {
        // If no stamp can be kept here, none is found and none was recorded as the previous one.
        return match known.before == StampId::default() {
            true => SegmentOwnership::Current,
            false => SegmentOwnership::Lost,
        };
    };
    let ours = found.id == known.before || found.id == known.written;
    if ours && found.applied > end {
        // Table and log were copied at different times, or the log has lost its end.
        return SegmentOwnership::Overtaken;
    }
    if ours {
        return SegmentOwnership::Current;
    }
    let stamped = known.written != StampId::default();
    if stamped && found.generation < known.generation {
        return SegmentOwnership::Older;
    }
    if found.open {
        return SegmentOwnership::OwnedByOtherLog;
    }
    // The other log has nothing left to apply. If it has this log's journal, it is a copy of this log that
    // continued elsewhere.
    match unapplied || (stamped && found.journal == journal) {
        true => SegmentOwnership::Overtaken,
        false => SegmentOwnership::Current,
    }
}

/// Encodes a stamp.
pub(crate) fn encode(stamp: &SegmentStamp) -> [u8; STAMP_BYTES] {
    let table = tail(&stamp.table);
    let flags = if stamp.open { OPEN } else { 0 };
    let mut bytes = [0; STAMP_BYTES];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&flags.to_le_bytes());
    bytes[12..16].copy_from_slice(&(table.len() as u32).to_le_bytes());
    bytes[16..32].copy_from_slice(&stamp.id);
    bytes[32..48].copy_from_slice(&stamp.journal.0.to_le_bytes());
    bytes[48..56].copy_from_slice(&stamp.generation.to_le_bytes());
    bytes[56..64].copy_from_slice(&stamp.applied.0.to_le_bytes());
    bytes[64..72].copy_from_slice(&stamp.file.to_le_bytes());
    bytes[TABLE_AT..TABLE_AT + table.len()].copy_from_slice(table.as_bytes());
    set_checksum(&mut bytes);
    bytes
}

/// Sets the checksum.
pub(crate) fn set_checksum(bytes: &mut [u8; STAMP_BYTES]) {
    let crc = checksum(bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the output of [`encode`]; returns `None` for other bytes.
pub(crate) fn decode(bytes: &[u8]) -> Option<SegmentStamp> {
    let bytes: &[u8; STAMP_BYTES] = bytes.try_into().ok()?;
    let crc = u32::from_le_bytes(bytes[CRC_AT..CRC_AT + 4].try_into().expect("4 bytes"));
    if bytes[0..8] != MAGIC || u16_at(bytes, 8) != VERSION || crc != checksum(bytes) {
        return None;
    }
    let length = u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes")) as usize;
    let table = bytes[TABLE_AT..].get(..length)?;
    Some(SegmentStamp {
        id: bytes[16..32].try_into().expect("16 bytes"),
        journal: JournalId(u128::from_le_bytes(bytes[32..48].try_into().expect("16 bytes"))),
        generation: u64_at(bytes, 48),
        applied: Lsn(u64_at(bytes, 56)),
        open: u16_at(bytes, 10) & OPEN != 0,
        file: u64_at(bytes, 64),
        table: std::str::from_utf8(table).ok()?.to_owned(),
    })
}

/// The longest end of a path that fits and begins at a character boundary.
fn tail(path: &str) -> &str {
    let mut from = path.len().saturating_sub(TABLE_BYTES_MAX);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    &path[from..]
}

/// CRC32C of the stamp, with zeros in the checksum's own field.
fn checksum(bytes: &[u8; STAMP_BYTES]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..CRC_AT]);
    digest.update(&[0; 4]);
    digest.update(&bytes[CRC_AT + 4..]);
    // The crate returns the 32-bit checksum in 64 bits.
    digest.finalize() as u32
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: JournalId = JournalId(7);
    const END: Lsn = Lsn(1000);
    const KNOWN: StampHistory = StampHistory {
        before: [4; 16],
        written: [5; 16],
        generation: 5,
        open: true,
    };

    fn stamp(id: u8, generation: u64) -> SegmentStamp {
        SegmentStamp {
            id: [id; 16],
            journal: OURS,
            generation,
            applied: Lsn(900),
            open: true,
            file: 3,
            table: "/var/lib/bank/segments".to_owned(),
        }
    }

    fn clean(id: u8, generation: u64, journal: JournalId) -> SegmentStamp {
        SegmentStamp {
            open: false,
            journal,
            ..stamp(id, generation)
        }
    }

    fn stands(known: &StampHistory, found: &SegmentStamp, unapplied: bool) -> SegmentOwnership {
        ownership(known, Some(found), OURS, END, unapplied)
    }

    #[test]
    fn a_crash_between_table_and_stamp_leaves_the_segment_current() {
        for id in [4, 5] {
            assert_eq!(
                stands(&KNOWN, &stamp(id, id.into()), true),
                SegmentOwnership::Current
            );
        }
        let first = StampHistory {
            before: [0; 16],
            ..KNOWN
        };
        assert_eq!(
            ownership(&first, None, OURS, END, true),
            SegmentOwnership::Current
        );
    }

    #[test]
    fn an_overtaken_log_is_distinguished_from_an_older_segment() {
        assert_eq!(
            stands(&KNOWN, &stamp(9, 9), true),
            SegmentOwnership::OwnedByOtherLog
        );
        assert_eq!(
            stands(&KNOWN, &clean(9, 9, JournalId(8)), true),
            SegmentOwnership::Overtaken
        );
        assert_eq!(
            stands(&KNOWN, &clean(9, 9, OURS), false),
            SegmentOwnership::Overtaken,
            "a copy of the log continued"
        );
        assert_eq!(
            stands(&KNOWN, &clean(9, 5, OURS), false),
            SegmentOwnership::Overtaken,
            "from the state of this log"
        );
        assert_eq!(stands(&KNOWN, &clean(3, 3, OURS), false), SegmentOwnership::Older);
        assert_eq!(ownership(&KNOWN, None, OURS, END, false), SegmentOwnership::Lost);
    }

    #[test]
    fn a_segment_of_a_closed_log_may_be_used_by_another() {
        let left = clean(9, 9, JournalId(8));
        assert_eq!(stands(&KNOWN, &left, false), SegmentOwnership::Current);
        assert_eq!(
            stands(&StampHistory::default(), &left, false),
            SegmentOwnership::Current
        );
        assert_eq!(
            stands(&StampHistory::default(), &left, true),
            SegmentOwnership::Overtaken
        );
        assert_eq!(
            stands(&StampHistory::default(), &stamp(9, 9), false),
            SegmentOwnership::OwnedByOtherLog
        );
    }

    #[test]
    fn a_table_newer_than_its_log_does_not_permit_changes() {
        let beyond = SegmentStamp {
            applied: Lsn(1001),
            ..stamp(5, 5)
        };
        assert_eq!(stands(&KNOWN, &beyond, true), SegmentOwnership::Overtaken);
    }

    #[test]
    fn a_stamp_reads_back_and_a_damaged_one_does_not() {
        let long = SegmentStamp {
            table: format!("/{}/segments", "ä".repeat(300)),
            ..stamp(5, 5)
        };
        let read = decode(&encode(&long)).expect("a stamp");
        assert!(read.table.ends_with("ä/segments") && read.table.len() <= TABLE_BYTES_MAX);
        let bytes = encode(&stamp(5, 5));
        assert_eq!(decode(&bytes), Some(stamp(5, 5)));
        for at in 0..STAMP_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged), None, "byte {at}");
        }
        assert_eq!(decode(&bytes[..STAMP_BYTES - 1]), None);
    }
}
