//! Entry points for fuzzers (`fuzz/checks`) only: the segment table and a segment's stamp as arbitrary bytes.

use netram_proto::id::{JournalId, Lsn};

use crate::stamp::{self, STAMP_BYTES, SegmentStamp};
use crate::table;

/// Decodes a slot of the segment table, cut to the length of `bytes`. If the first byte is odd the checksum
/// is corrected.
pub fn table(bytes: &[u8]) {
    table::fuzz(bytes);
}

/// Seeds: a table with two segments, in both versions.
pub fn table_seeds() -> Vec<Vec<u8>> {
    table::fuzz_seeds()
}

/// Decodes a segment's stamp. If the first byte is odd the checksum is corrected.
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

/// Seeds: a stamp.
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
