//! The stamp: which log a segment belongs to, and how far that log was applied to it.
//!
//! A log's records say what bytes were, not when. Applied to a segment that another log, or this log's
//! original, has changed since, they put old bytes over acknowledged ones. So each log leaves a stamp on the
//! segment (never in its bytes, which are the user's) *before* it writes there, and has written down in its
//! own table which stamp that will be before it leaves it. A log that finds a stamp it has never written down
//! is not the segment's newest.
//!
//! Every stamp has an id of its own, drawn at random: two copies of one log that go on by themselves never
//! leave the same. `docs/rvm.md` draws the bytes and argues each case.

use netram_proto::id::{JournalId, Lsn};

/// Names one stamp, at random. Zeros: none.
pub type StampId = [u8; 16];

/// Bytes of a stamp.
pub(crate) const STAMP_BYTES: usize = 320;
const CRC_AT: usize = 72;
const TABLE_AT: usize = 80;
const TABLE_BYTES_MAX: usize = STAMP_BYTES - TABLE_AT;
const MAGIC: [u8; 8] = *b"NRAMSTMP";
const VERSION: u16 = 1;
const OPEN: u16 = 1;

/// What a log leaves on a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentStamp {
    /// Tells it from every other stamp.
    pub id: StampId,
    /// The log's journal.
    pub journal: JournalId,
    /// One more than that of the stamp before, whoever left that one.
    pub generation: u64,
    /// No record of the log at or above this has been written to the segment.
    pub applied: Lsn,
    /// The log may have records that the segment lacks.
    pub open: bool,
    /// The file that the stamp was left on: a copy of it has another number. Zero: unknown.
    pub file: u64,
    /// The log's segment table, as its program named it; cut off in front if it is long.
    pub table: String,
}

/// The stamps that a log has written down for one segment: the one that was there, and the one that it was
/// about to leave. After a crash either may be there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StampHistory {
    /// Zeros: there was none.
    pub(crate) before: StampId,
    /// Zeros: the log has never left one.
    pub(crate) written: StampId,
    pub(crate) generation: u64,
    /// The last one says that the log may have records that the segment lacks.
    pub(crate) open: bool,
}

/// How a log stands to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentOwnership {
    /// Nobody has changed the segment since this log did, or whoever did has ended and left nothing of it to
    /// lose.
    Current,
    /// Another log, or another copy of this one, has changed the segment since.
    Overtaken,
    /// Another log, or another copy of this one, has records that the segment lacks.
    OwnedByOtherLog,
    /// The segment is as it was before this log changed it last.
    Older,
    /// This log has left a stamp, and it is gone.
    Lost,
}

/// How the log of `journal`, which ends at `end` and knows these stamps, stands to a segment with the stamp
/// `found`. `unapplied`: the log has records that change the segment.
pub(crate) fn ownership(
    known: &StampHistory,
    found: Option<&SegmentStamp>,
    journal: JournalId,
    end: Lsn,
    unapplied: bool,
) -> SegmentOwnership {
    let Some(found) = found else {
        // Where no stamp can be kept there never is one, and none was written down as having been there.
        return match known.before == StampId::default() {
            true => SegmentOwnership::Current,
            false => SegmentOwnership::Lost,
        };
    };
    let ours = found.id == known.before || found.id == known.written;
    if ours && found.applied > end {
        // Table and log were copied at different moments, or the log has lost its end.
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
    // Clean: its log has nothing more for the segment. A copy of this very log went on where this one did
    // not.
    match unapplied || (stamped && found.journal == journal) {
        true => SegmentOwnership::Overtaken,
        false => SegmentOwnership::Current,
    }
}

/// A stamp as bytes.
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

/// Makes the checksum right.
pub(crate) fn set_checksum(bytes: &mut [u8; STAMP_BYTES]) {
    let crc = checksum(bytes);
    bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Reads what [`encode`] wrote; `None` for anything else.
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

/// The end of a path that fits, beginning with a whole letter.
fn tail(path: &str) -> &str {
    let mut from = path.len().saturating_sub(TABLE_BYTES_MAX);
    while !path.is_char_boundary(from) {
        from += 1;
    }
    &path[from..]
}

/// CRC32C of the stamp with the checksum's own field as zeros.
fn checksum(bytes: &[u8; STAMP_BYTES]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..CRC_AT]);
    digest.update(&[0; 4]);
    digest.update(&bytes[CRC_AT + 4..]);
    // A 32-bit checksum in a 64-bit answer.
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
    fn after_a_crash_between_table_and_stamp_the_log_knows_its_segment() {
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
    fn a_log_that_was_overtaken_is_told_from_a_segment_that_was_put_back() {
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
            "a copy went on"
        );
        assert_eq!(
            stands(&KNOWN, &clean(9, 5, OURS), false),
            SegmentOwnership::Overtaken,
            "from where this one is"
        );
        assert_eq!(stands(&KNOWN, &clean(3, 3, OURS), false), SegmentOwnership::Older);
        assert_eq!(ownership(&KNOWN, None, OURS, END, false), SegmentOwnership::Lost);
    }

    #[test]
    fn a_segment_whose_last_log_ended_well_is_the_next_ones() {
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
    fn a_table_that_is_newer_than_its_log_is_no_licence() {
        let beyond = SegmentStamp {
            applied: Lsn(1001),
            ..stamp(5, 5)
        };
        assert_eq!(stands(&KNOWN, &beyond, true), SegmentOwnership::Overtaken);
    }

    #[test]
    fn a_stamp_reads_back_and_damage_is_none() {
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
