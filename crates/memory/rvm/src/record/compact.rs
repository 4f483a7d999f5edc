//! The compact form: a preamble for other readers, then ranges in order. Each range is placed relative to the
//! end of the previous one by a header of 4, 8 or 16 bytes.
//!
//! Every list of ranges has exactly one encoding: a header longer than its range needs is refused, and so are
//! ranges out of order. `cargo run --release -p netram-rvm --example record` measures the costs.

use netram_proto::wire::ByteReader;

use super::RangeView;
use crate::error::RecordDecodeError;
use crate::limit::{COPY_BYTES, PREAMBLE_BYTES_MAX};

/// Bits of a header's first word that give the header's form.
const FORM_BITS: u32 = 2;
const FORM_MASK: u32 = (1 << FORM_BITS) - 1;
const SHORT: u32 = 0;
const NEAR: u32 = 1;
const FAR: u32 = 2;

/// A short header: 12 bits of length, 18 of gap.
const SHORT_LENGTH_BITS: u32 = 12;
const SHORT_LENGTH_MAX: u32 = 1 << SHORT_LENGTH_BITS;
const SHORT_GAP_BITS: u32 = 32 - FORM_BITS - SHORT_LENGTH_BITS;
/// A near header: 30 bits of length, 32 of gap.
const NEAR_LENGTH_MAX: u32 = 1 << (32 - FORM_BITS);
const NEAR_GAP_BITS: u32 = 32;

const SHORT_BYTES: usize = 4;
const NEAR_BYTES: usize = 8;
const FAR_BYTES: usize = 16;

/// Smallest header of a range, in bytes.
pub(crate) const RANGE_HEADER_BYTES_MIN: usize = SHORT_BYTES;
/// Largest header of a range, in bytes.
pub(crate) const RANGE_HEADER_BYTES_MAX: usize = FAR_BYTES;

/// End of the previous range, relative to which the next one is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeCursor {
    segment: u32,
    end: u64,
}

impl RangeCursor {
    /// Bytes of the header of a range placed here. The range becomes the previous one.
    ///
    /// The length must not be zero, and the range must end at a valid offset.
    #[inline]
    pub(crate) fn advance(&mut self, segment: u32, offset: u64, length: u32) -> usize {
        let bytes = self.header_bytes(segment, offset, length);
        *self = RangeCursor {
            segment,
            end: offset + u64::from(length),
        };
        bytes
    }

    #[inline]
    fn header_bytes(&self, segment: u32, offset: u64, length: u32) -> usize {
        // Ranges ascend, so this does not wrap within a segment.
        let gap = offset.wrapping_sub(self.end);
        let near = segment == self.segment && gap >> NEAR_GAP_BITS == 0;
        if near && gap >> SHORT_GAP_BITS == 0 && length <= SHORT_LENGTH_MAX {
            SHORT_BYTES
        } else if near && length <= NEAR_LENGTH_MAX {
            NEAR_BYTES
        } else {
            FAR_BYTES
        }
    }

    /// The offset that lies `gap` bytes behind the end of the previous range.
    #[inline]
    fn behind(&self, gap: u64) -> Result<u64, RecordDecodeError> {
        self.end.checked_add(gap).ok_or(RecordDecodeError::Overflow)
    }

    /// Whether a range may come next.
    fn precedes(&self, segment: u32, offset: u64) -> bool {
        (self.segment, self.end) <= (segment, offset)
    }
}

/// Bytes of a preamble together with its length field.
pub(crate) fn preamble_bytes(length: usize) -> usize {
    // The length field holds seven bits per byte.
    (usize::BITS - (length | 1).leading_zeros()).div_ceil(7) as usize + length
}

/// The longest range that a record with a payload of `payload_max` bytes can carry.
pub(crate) fn range_bytes_max(payload_max: usize) -> usize {
    let bytes = payload_max.saturating_sub(preamble_bytes(0) + FAR_BYTES);
    bytes.min(u32::MAX as usize)
}

/// Bytes of the payload with a preamble of `preamble` bytes and these ranges, which are in order and given as
/// segment, offset and length.
pub fn payload_bytes(preamble: usize, ranges: impl Iterator<Item = (u32, u64, u32)>) -> u64 {
    let mut cursor = RangeCursor::default();
    let ranges = ranges
        .map(|(segment, offset, length)| cursor.advance(segment, offset, length) as u64 + u64::from(length));
    preamble_bytes(preamble) as u64 + ranges.sum::<u64>()
}

/// The payload with this preamble and these ranges, for tools, tests and simulations; a commit writes its
/// payload directly into the log's memory. The ranges must ascend by segment and offset, must not touch, and
/// must not be empty.
pub fn encode(preamble: &[u8], ranges: &[RangeView<'_>]) -> Vec<u8> {
    let lengths = ranges.iter().map(|range| {
        let length = u32::try_from(range.bytes.len()).expect("a range is shorter than 4 GiB");
        (range.segment, range.offset, length)
    });
    let mut payload = vec![0; payload_bytes(preamble.len(), lengths.clone()) as usize];
    let mut encoder = RecordEncoder::new(&mut payload, preamble);
    for (range, (segment, offset, length)) in ranges.iter().zip(lengths) {
        encoder
            .range(segment, offset, length)
            .copy_from_slice(range.bytes);
    }
    encoder.finish();
    payload
}

/// Writes the bytes of a record's payload.
pub(crate) struct RecordEncoder<'a> {
    left: &'a mut [u8],
    cursor: RangeCursor,
}

impl<'a> RecordEncoder<'a> {
    pub(crate) fn new(payload: &'a mut [u8], preamble: &[u8]) -> RecordEncoder<'a> {
        assert!(preamble.len() <= PREAMBLE_BYTES_MAX);
        let (header, left) = payload.split_at_mut(preamble_bytes(preamble.len()));
        let (length, bytes) = header.split_at_mut(header.len() - preamble.len());
        let mut rest = preamble.len();
        for byte in &mut *length {
            *byte = rest as u8 | 0x80;
            rest >>= 7;
        }
        *length.last_mut().expect("a varint has a byte") &= 0x7f;
        bytes.copy_from_slice(preamble);
        RecordEncoder {
            left,
            cursor: RangeCursor::default(),
        }
    }

    /// Writes a range's header and returns its bytes for the caller to fill.
    #[inline]
    pub(crate) fn range(&mut self, segment: u32, offset: u64, length: u32) -> &mut [u8] {
        let before = self.cursor;
        debug_assert!(before.precedes(segment, offset), "ranges ascend");
        let header = self.cursor.advance(segment, offset, length);
        let gap = offset.wrapping_sub(before.end);
        let less = length - 1;
        let range = std::mem::take(&mut self.left);
        let (range, left) = range.split_at_mut(header + length as usize);
        self.left = left;
        let (into, bytes) = range.split_at_mut(header);
        match header {
            SHORT_BYTES => {
                let word = SHORT | less << FORM_BITS | (gap as u32) << (FORM_BITS + SHORT_LENGTH_BITS);
                into.copy_from_slice(&word.to_le_bytes());
            }
            NEAR_BYTES => {
                let word = u64::from(NEAR | less << FORM_BITS) | gap << 32;
                into.copy_from_slice(&word.to_le_bytes());
            }
            _ => {
                assert!(segment <= u32::MAX >> FORM_BITS);
                into[..4].copy_from_slice(&(FAR | segment << FORM_BITS).to_le_bytes());
                into[4..8].copy_from_slice(&less.to_le_bytes());
                into[8..].copy_from_slice(&offset.to_le_bytes());
            }
        }
        bytes
    }

    /// Copies ranges from another payload as encoded there. All must lie in `segment`, in which this payload
    /// has none yet. The encoding is the same, since the first range of a segment is placed absolutely.
    pub(crate) fn ranges(&mut self, segment: u32, end: u64, ranges: &[u8]) {
        let cursor = RangeCursor { segment, end };
        assert!(self.cursor == RangeCursor::default() || self.cursor.segment < segment);
        let (into, left) = std::mem::take(&mut self.left).split_at_mut(ranges.len());
        for (into, ranges) in into.chunks_mut(COPY_BYTES).zip(ranges.chunks(COPY_BYTES)) {
            into.copy_from_slice(ranges);
        }
        (self.left, self.cursor) = (left, cursor);
    }

    /// Asserts that the payload is full.
    pub(crate) fn finish(self) {
        assert!(self.left.is_empty());
    }
}

/// Splits a payload into its preamble and its ranges.
pub(super) fn split(payload: &[u8]) -> Result<(&[u8], &[u8]), RecordDecodeError> {
    let mut cursor = ByteReader::new(payload);
    let length = cursor.varint().map_err(|_| RecordDecodeError::Short)?;
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= PREAMBLE_BYTES_MAX);
    let length = length.ok_or(RecordDecodeError::Preamble)?;
    let preamble = cursor.bytes(length).map_err(|_| RecordDecodeError::Short)?;
    Ok((preamble, cursor.rest()))
}

/// Decodes the next range and removes it from `left`.
#[inline]
pub(super) fn next<'a>(
    left: &mut &'a [u8],
    cursor: &mut RangeCursor,
) -> Result<Option<RangeView<'a>>, RecordDecodeError> {
    let Some((word, rest)) = left.split_first_chunk::<4>() else {
        return match left.is_empty() {
            true => Ok(None),
            false => Err(RecordDecodeError::Short),
        };
    };
    let word = u32::from_le_bytes(*word);
    if word & FORM_MASK != SHORT {
        return long(word, rest, left, cursor).map(Some);
    }
    // The short header is never longer than needed, and its range follows the previous one.
    let gap = u64::from(word >> (FORM_BITS + SHORT_LENGTH_BITS));
    let length = (word >> FORM_BITS & (SHORT_LENGTH_MAX - 1)) + 1;
    take(cursor.segment, cursor.behind(gap)?, length, rest, left, cursor).map(Some)
}

/// Decodes a range with a longer header. `word` is its first word and `rest` the bytes behind it.
fn long<'a>(
    word: u32,
    rest: &'a [u8],
    left: &mut &'a [u8],
    cursor: &mut RangeCursor,
) -> Result<RangeView<'a>, RecordDecodeError> {
    let (second, rest) = rest.split_first_chunk::<4>().ok_or(RecordDecodeError::Short)?;
    let (high, second) = (word >> FORM_BITS, u32::from_le_bytes(*second));
    let (header, segment, offset, less, rest) = match word & FORM_MASK {
        NEAR => (
            NEAR_BYTES,
            cursor.segment,
            cursor.behind(second.into())?,
            high,
            rest,
        ),
        FAR => {
            let (offset, rest) = rest.split_first_chunk::<8>().ok_or(RecordDecodeError::Short)?;
            (FAR_BYTES, high, u64::from_le_bytes(*offset), second, rest)
        }
        _ => return Err(RecordDecodeError::Form),
    };
    if !cursor.precedes(segment, offset) {
        return Err(RecordDecodeError::Order);
    }
    // The encoding allows a length of 2^32, but no range is that long.
    let length = less.checked_add(1).ok_or(RecordDecodeError::Overflow)?;
    if cursor.header_bytes(segment, offset, length) != header {
        return Err(RecordDecodeError::Form);
    }
    take(segment, offset, length, rest, left, cursor)
}

/// Takes the values of a range off `rest` and sets `left` to the remainder.
#[inline]
fn take<'a>(
    segment: u32,
    offset: u64,
    length: u32,
    rest: &'a [u8],
    left: &mut &'a [u8],
    cursor: &mut RangeCursor,
) -> Result<RangeView<'a>, RecordDecodeError> {
    let end = offset
        .checked_add(length.into())
        .ok_or(RecordDecodeError::Overflow)?;
    let (bytes, rest) = rest
        .split_at_checked(length as usize)
        .ok_or(RecordDecodeError::Short)?;
    *cursor = RangeCursor { segment, end };
    *left = rest;
    Ok(RangeView {
        segment,
        offset,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{KIND_COMPACT, decode};
    use super::*;

    type Range = (u32, u64, Vec<u8>);

    fn encoded(preamble: &[u8], ranges: &[Range]) -> Vec<u8> {
        let views: Vec<RangeView<'_>> = ranges
            .iter()
            .map(|(segment, offset, bytes)| RangeView {
                segment: *segment,
                offset: *offset,
                bytes,
            })
            .collect();
        encode(preamble, &views)
    }

    fn decoded(payload: &[u8]) -> Result<(Vec<u8>, Vec<Range>), RecordDecodeError> {
        let changes = decode(KIND_COMPACT, payload)?;
        let ranges: Vec<Range> = changes
            .ranges()
            .map(|range| (range.segment, range.offset, range.bytes.to_vec()))
            .collect();
        let bytes: u64 = ranges.iter().map(|range| range.2.len() as u64).sum();
        assert_eq!((ranges.len(), bytes), (changes.count() as usize, changes.bytes()));
        Ok((changes.preamble().to_vec(), ranges))
    }

    /// Ranges in order: gaps of every width, lengths on both sides of a short header's limit.
    fn ranges() -> impl Strategy<Value = Vec<Range>> {
        let gap = prop_oneof![
            0u64..40,
            (1u64 << 18) - 3..(1 << 18) + 3,
            (1u64 << 32) - 3..(1 << 32) + 3
        ];
        let length = prop_oneof![1usize..40, 4090usize..4100];
        let step = (
            prop_oneof![4 => Just(0u32), 1 => 1u32..1000],
            gap,
            length,
            any::<u8>(),
        );
        proptest::collection::vec(step, 0..8).prop_map(|steps| {
            let (mut segment, mut end) = (0, 0);
            let mut ranges = Vec::new();
            for (further, gap, length, byte) in steps {
                if further > 0 {
                    (segment, end) = (segment + further, 0);
                }
                let offset = end + gap;
                end = offset + length as u64;
                ranges.push((segment, offset, vec![byte; length]));
            }
            ranges
        })
    }

    fn preamble() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u8>(), 1..300)]
    }

    proptest! {
        #[test]
        fn an_encoded_record_decodes_to_itself(preamble in preamble(), ranges in ranges()) {
            prop_assert_eq!(decoded(&encoded(&preamble, &ranges)).unwrap(), (preamble, ranges));
        }

        #[test]
        fn a_decoded_record_encodes_to_the_same_bytes(
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok((preamble, ranges)) = decoded(&payload) {
                prop_assert_eq!(encoded(&preamble, &ranges), payload);
            }
        }

        #[test]
        fn a_flipped_bit_never_reads_outside_the_payload(
            preamble in preamble(), ranges in ranges(), at in any::<prop::sample::Index>(), bit in 0u8..8
        ) {
            let mut payload = encoded(&preamble, &ranges);
            let at = at.index(payload.len());
            payload[at] ^= 1 << bit;
            if let Ok((preamble, ranges)) = decoded(&payload) {
                prop_assert_eq!(encoded(&preamble, &ranges), payload);
            }
        }

        #[test]
        fn a_truncated_payload_is_refused_or_keeps_its_first_ranges(
            ranges in ranges(),
            at in any::<prop::sample::Index>(),
        ) {
            let payload = encoded(b"of others", &ranges);
            if let Ok((_, kept)) = decoded(&payload[..at.index(payload.len())]) {
                prop_assert_eq!(&kept[..], &ranges[..kept.len()]);
            }
        }
    }

    #[test]
    fn a_range_gets_the_shortest_header_that_fits() {
        let bytes = |ranges: &[(u32, u64, u32)]| payload_bytes(0, ranges.iter().copied());
        assert_eq!(bytes(&[]), 1);
        assert_eq!(bytes(&[(0, 8, 8)]), 1 + 4 + 8);
        assert_eq!(bytes(&[(0, 8, 8), (0, 16, 4096)]), 1 + 12 + 4100);
        assert_eq!(bytes(&[(0, (1 << 18) - 1, 4096)]), 1 + 4 + 4096);
        assert_eq!(bytes(&[(0, 1 << 18, 8)]), 1 + 8 + 8);
        assert_eq!(bytes(&[(0, 0, 4097)]), 1 + 8 + 4097);
        assert_eq!(bytes(&[(0, (1 << 32) - 1, 1 << 30)]), 1 + 8 + (1 << 30));
        assert_eq!(bytes(&[(0, 1 << 32, 8)]), 1 + 16 + 8);
        assert_eq!(bytes(&[(0, 0, (1 << 30) + 1)]), 1 + 16 + (1 << 30) + 1);
        assert_eq!(bytes(&[(1, 0, 8), (1, 16, 8), (2, 24, 8)]), 1 + 24 + 12 + 24);
    }

    #[test]
    fn the_encoding_equals_the_documented_bytes() {
        let ranges = [(0, 16, vec![1, 2]), (0, 1 << 20, vec![3]), (5, 7, vec![4])];
        let mut wanted = vec![2, b'a', b'b'];
        wanted.extend_from_slice(&(1u32 << 2 | 16 << 14).to_le_bytes());
        wanted.extend_from_slice(&[1, 2]);
        wanted.extend_from_slice(&1u32.to_le_bytes());
        wanted.extend_from_slice(&((1u32 << 20) - 18).to_le_bytes());
        wanted.push(3);
        wanted.extend_from_slice(&(2u32 | 5 << 2).to_le_bytes());
        wanted.extend_from_slice(&0u32.to_le_bytes());
        wanted.extend_from_slice(&7u64.to_le_bytes());
        wanted.push(4);
        assert_eq!(encoded(b"ab", &ranges), wanted);
    }

    #[test]
    fn noncanonical_payloads_are_refused() {
        let far = |segment: u32, offset: u64| {
            let mut header = (FAR | segment << FORM_BITS).to_le_bytes().to_vec();
            header.extend_from_slice(&0u32.to_le_bytes());
            header.extend_from_slice(&offset.to_le_bytes());
            header.push(9);
            header
        };
        let refused = |parts: &[&[u8]]| decoded(&parts.concat()).unwrap_err();
        assert_eq!(refused(&[]), RecordDecodeError::Short);
        assert_eq!(
            refused(&[&[0], &[3, 0, 0, 0, 0, 0, 0, 0]]),
            RecordDecodeError::Form
        );
        assert_eq!(
            refused(&[&[0], &far(0, 5)]),
            RecordDecodeError::Form,
            "a short header would fit"
        );
        assert_eq!(refused(&[&[0], &far(3, 5), &far(3, 9)]), RecordDecodeError::Form);
        assert_eq!(
            refused(&[&[0], &far(3, 1 << 40), &far(3, 5)]),
            RecordDecodeError::Order
        );
        assert_eq!(refused(&[&[0], &far(3, 5), &far(2, 5)]), RecordDecodeError::Order);
        assert_eq!(refused(&[&[0], &far(3, u64::MAX)]), RecordDecodeError::Overflow);
        let mut too_long = vec![0x80, 0x80, 0x80, 1];
        too_long.resize(4 << 20, 0);
        assert_eq!(refused(&[&too_long]), RecordDecodeError::Preamble);
        let other = decode(netram_proto::port::RecordKind(18), &[0]).unwrap_err();
        assert_eq!(other, RecordDecodeError::Kind { kind: 18 });
    }
}
