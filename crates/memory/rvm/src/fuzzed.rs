//! What stands beside a log and behind a segment, for fuzzers (`fuzz/checks`) and nobody else.

use netram_proto::id::{JournalId, Lsn};

use crate::stamp::{self, STAMP_BYTES, SegmentStamp};
use crate::table;

/// A slot of the table of segments, cut to what the bytes fill, its checksum made right if the first byte is
/// odd.
pub fn table(bytes: &[u8]) {
    table::fuzz(bytes);
}

/// A table with two segments, of both versions.
pub fn table_seeds() -> Vec<Vec<u8>> {
    table::fuzz_seeds()
}

/// A segment's stamp, its checksum made right if the first byte is odd.
pub fn stamp(bytes: &[u8]) {
    let Some((mend, bytes)) = bytes.split_first() else {
        return;
    };
    let mut block = [0; STAMP_BYTES];
    for (into, byte) in block.iter_mut().zip(bytes) {
        *into = *byte;
    }
    if mend & 1 != 0 {
        stamp::set_checksum(&mut block);
    }
    if let Some(found) = stamp::decode(&block) {
        assert_eq!(stamp::decode(&stamp::encode(&found)), Some(found));
    }
}

/// A stamp.
pub fn stamp_seeds() -> Vec<Vec<u8>> {
    let made = SegmentStamp {
        id: [7; 16],
        journal: JournalId(5),
        generation: 3,
        applied: Lsn(640),
        open: true,
        file: 9,
        table: "/var/lib/program/log".into(),
    };
    vec![[&[1], &stamp::encode(&made)[..]].concat()]
}
