//! A region of words, the spans of its locks, and records that write them.

use std::sync::Arc;

use netram_proto::wire::{ByteReader, put_varint};
use netram_shared_machine::{LockId, Stamp};

/// A record's payload, or a page.
pub(crate) type PayloadBytes = Arc<[u8]>;

pub(crate) const LOCKS: u32 = 5;
const SPAN_WORDS: usize = 4;
/// The spans of locks 0 and 1 touch. Between the others are words that may never be written.
pub(crate) const WORDS: usize = (SPAN_WORDS + 1) * LOCKS as usize;

/// The words of a lock's span.
pub(crate) fn span(lock: LockId) -> std::ops::Range<usize> {
    let gaps = lock.0.saturating_sub(1) as usize;
    let start = lock.0 as usize * SPAN_WORDS + gaps;
    start..start + SPAN_WORDS
}

pub(crate) fn locks() -> impl Iterator<Item = LockId> {
    (0..LOCKS).map(LockId)
}

/// A record that sets some words.
pub(crate) fn record(stamp: &Stamp, writes: &[(usize, u64)]) -> PayloadBytes {
    let (mut preamble, mut bytes) = (Vec::new(), Vec::new());
    stamp.encode(&mut preamble);
    put_varint(&mut bytes, preamble.len() as u64);
    bytes.extend_from_slice(&preamble);
    for (word, value) in writes {
        put_varint(&mut bytes, *word as u64);
        put_varint(&mut bytes, *value);
    }
    bytes.into()
}

pub(crate) fn stamp(payload: &PayloadBytes) -> Stamp {
    Stamp::of(payload).expect("a record of this world")
}

pub(crate) fn apply(payload: &PayloadBytes, region: &mut [u64]) {
    let mut cursor = ByteReader::new(payload);
    let preamble = cursor.varint().expect("a length");
    cursor.bytes(preamble as usize).expect("a preamble");
    while !cursor.rest().is_empty() {
        let word = cursor.varint().expect("a word") as usize;
        region[word] = cursor.varint().expect("a value");
    }
}

pub(crate) fn page(region: &[u64], offset: u64, bytes: u64) -> PayloadBytes {
    let words = &region[offset as usize / 8..(offset + bytes) as usize / 8];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub(crate) fn put_page(region: &mut [u64], offset: u64, bytes: &[u8]) {
    for (index, word) in bytes.chunks_exact(8).enumerate() {
        let word = word.first_chunk().expect("eight bytes");
        region[offset as usize / 8 + index] = u64::from_le_bytes(*word);
    }
}
