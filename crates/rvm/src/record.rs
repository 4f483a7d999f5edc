//! A transaction as bytes: the payload of one log record. Drawn in `docs/rvm.md`.
//!
//! The log's own header carries the checksum. Decoding still trusts no length: a payload that does not hold
//! together is corruption, never the end of the log.

use netram_proto::port::Kind;

use crate::error::DecodeError;

/// The kind of a transaction's record.
pub const KIND_TRANSACTION: Kind = Kind(16);

pub(crate) const HEADER_BYTES: usize = 8;
/// Bytes of a range's header.
pub(crate) const RANGE_BYTES: usize = 24;
const ALIGN: usize = 8;

/// Payload bytes of one range.
pub(crate) fn range_bytes(length: u32) -> u64 {
    RANGE_BYTES as u64 + u64::from(length).next_multiple_of(ALIGN as u64)
}

/// Payload bytes of a record whose ranges have these lengths.
pub fn payload_bytes(lengths: impl Iterator<Item = u32>) -> u64 {
    HEADER_BYTES as u64 + lengths.map(range_bytes).sum::<u64>()
}

/// The longest range that a record with a payload of `payload_max` bytes can carry.
pub(crate) fn range_bytes_max(payload_max: usize) -> usize {
    let bytes = payload_max.saturating_sub(HEADER_BYTES + RANGE_BYTES) / ALIGN * ALIGN;
    bytes.min(u32::MAX as usize)
}

/// Writes a record's payload, every byte of it.
pub(crate) struct Encoder<'a> {
    left: &'a mut [u8],
    ranges: u32,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(payload: &'a mut [u8], ranges: u32) -> Encoder<'a> {
        let (header, left) = payload.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&ranges.to_le_bytes());
        header[4..].fill(0);
        Encoder { left, ranges }
    }

    /// Writes a range's header and zeroes its padding; the caller fills the bytes returned.
    pub(crate) fn range(&mut self, segment: u32, offset: u64, length: u32) -> &mut [u8] {
        self.ranges = self.ranges.checked_sub(1).expect("as many ranges as announced");
        let length = length as usize;
        let (range, left) =
            std::mem::take(&mut self.left).split_at_mut(RANGE_BYTES + length.next_multiple_of(ALIGN));
        self.left = left;
        range[0..4].copy_from_slice(&segment.to_le_bytes());
        range[4..8].fill(0);
        range[8..16].copy_from_slice(&offset.to_le_bytes());
        range[16..24].copy_from_slice(&(length as u64).to_le_bytes());
        let (bytes, padding) = range[RANGE_BYTES..].split_at_mut(length);
        padding.fill(0);
        bytes
    }

    /// Asserts that the payload is full.
    pub(crate) fn finish(self) {
        assert_eq!(self.ranges, 0);
        assert!(self.left.is_empty());
    }
}

/// One range of a decoded transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeView<'a> {
    /// The segment's number in the segment table.
    pub segment: u32,
    /// Where in the segment the bytes go.
    pub offset: u64,
    /// The new values.
    pub bytes: &'a [u8],
}

/// Checks a whole payload, then calls `each` for every range in it. Returns the number of ranges.
///
/// The check comes first, so that a damaged record is applied not even in part.
pub fn decode<'a>(payload: &'a [u8], mut each: impl FnMut(RangeView<'a>)) -> Result<u32, DecodeError> {
    walk(payload, &mut |_| {})?;
    walk(payload, &mut each)
}

fn walk<'a>(payload: &'a [u8], each: &mut impl FnMut(RangeView<'a>)) -> Result<u32, DecodeError> {
    let (header, mut left) = payload.split_at_checked(HEADER_BYTES).ok_or(DecodeError::Short)?;
    let count = u32::from_le_bytes(header[..4].try_into().expect("4 bytes"));
    if header[4..] != [0; 4] {
        return Err(DecodeError::Reserved);
    }
    for _ in 0..count {
        let (range, rest) = left.split_at_checked(RANGE_BYTES).ok_or(DecodeError::Short)?;
        if range[4..8] != [0; 4] {
            return Err(DecodeError::Reserved);
        }
        let segment = u32::from_le_bytes(range[0..4].try_into().expect("4 bytes"));
        let offset = u64::from_le_bytes(range[8..16].try_into().expect("8 bytes"));
        let length = u64::from_le_bytes(range[16..24].try_into().expect("8 bytes"));
        offset.checked_add(length).ok_or(DecodeError::Overflow)?;
        let length = usize::try_from(length).map_err(|_| DecodeError::Short)?;
        let (bytes, rest) = rest.split_at_checked(length).ok_or(DecodeError::Short)?;
        let padding = length.wrapping_neg() % ALIGN;
        let (padding, rest) = rest.split_at_checked(padding).ok_or(DecodeError::Short)?;
        if padding.iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Reserved);
        }
        each(RangeView {
            segment,
            offset,
            bytes,
        });
        left = rest;
    }
    if left.is_empty() {
        Ok(count)
    } else {
        Err(DecodeError::Trailing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(ranges: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
        let bytes = payload_bytes(ranges.iter().map(|range| range.2.len() as u32));
        let mut payload = vec![0xee; bytes as usize];
        let mut encoder = Encoder::new(&mut payload, ranges.len() as u32);
        for (segment, offset, bytes) in ranges {
            encoder
                .range(*segment, *offset, bytes.len() as u32)
                .copy_from_slice(bytes);
        }
        encoder.finish();
        payload
    }

    fn decoded(payload: &[u8]) -> Result<Vec<(u32, u64, Vec<u8>)>, DecodeError> {
        let mut ranges = Vec::new();
        decode(payload, |range| {
            ranges.push((range.segment, range.offset, range.bytes.to_vec()))
        })?;
        Ok(ranges)
    }

    fn ranges() -> impl Strategy<Value = Vec<(u32, u64, Vec<u8>)>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..40);
        proptest::collection::vec((any::<u32>(), 0..u64::MAX / 2, bytes), 0..6)
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(ranges in ranges()) {
            prop_assert_eq!(decoded(&encode(&ranges)).unwrap(), ranges);
        }

        #[test]
        fn foreign_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&payload);
        }

        #[test]
        fn a_changed_length_is_refused_or_stays_inside(ranges in ranges(), at in 0usize..200, bit in 0u8..8) {
            let mut payload = encode(&ranges);
            if at < payload.len() {
                payload[at] ^= 1 << bit;
            }
            let _ = decoded(&payload);
        }

        #[test]
        fn every_cut_is_refused(ranges in ranges(), cut in 1usize..50) {
            let payload = encode(&ranges);
            let kept = payload.len().saturating_sub(cut);
            prop_assert!(decoded(&payload[..kept]).is_err());
        }
    }

    #[test]
    fn padding_is_zeroed_and_checked() {
        let mut payload = encode(&[(1, 2, vec![9])]);
        assert_eq!(payload.len(), 8 + 24 + 8);
        assert_eq!(payload[33..], [0; 7]);
        payload[39] = 1;
        assert_eq!(decoded(&payload), Err(DecodeError::Reserved));
    }
}
