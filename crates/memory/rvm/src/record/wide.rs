//! The wide form of older programs: 24 bytes before each range, values padded to eight. It is only read.

use super::RangeView;
use crate::error::RecordDecodeError;

const HEADER_BYTES: usize = 8;
const RANGE_BYTES: usize = 24;
const ALIGN: usize = 8;

/// The ranges of a payload, behind its header.
pub(super) fn ranges(payload: &[u8]) -> Result<&[u8], RecordDecodeError> {
    let (header, ranges) = payload
        .split_at_checked(HEADER_BYTES)
        .ok_or(RecordDecodeError::Short)?;
    match header[4..] == [0; 4] {
        true => Ok(ranges),
        false => Err(RecordDecodeError::Reserved),
    }
}

/// Number of ranges in the header, which the payload must have.
pub(super) fn count(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload[..4].try_into().expect("4 bytes"))
}

/// Decodes the next range and removes it from `left`.
pub(super) fn next<'a>(left: &mut &'a [u8]) -> Result<Option<RangeView<'a>>, RecordDecodeError> {
    if left.is_empty() {
        return Ok(None);
    }
    let (range, rest) = left
        .split_at_checked(RANGE_BYTES)
        .ok_or(RecordDecodeError::Short)?;
    if range[4..8] != [0; 4] {
        return Err(RecordDecodeError::Reserved);
    }
    let segment = u32::from_le_bytes(range[0..4].try_into().expect("4 bytes"));
    let offset = u64::from_le_bytes(range[8..16].try_into().expect("8 bytes"));
    let length = u64::from_le_bytes(range[16..24].try_into().expect("8 bytes"));
    offset.checked_add(length).ok_or(RecordDecodeError::Overflow)?;
    let length = usize::try_from(length).map_err(|_| RecordDecodeError::Short)?;
    let (bytes, rest) = rest.split_at_checked(length).ok_or(RecordDecodeError::Short)?;
    let padding = length.wrapping_neg() % ALIGN;
    let (padding, rest) = rest.split_at_checked(padding).ok_or(RecordDecodeError::Short)?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err(RecordDecodeError::Reserved);
    }
    *left = rest;
    Ok(Some(RangeView {
        segment,
        offset,
        bytes,
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{KIND_TRANSACTION, decode};
    use super::*;

    /// Encodes records like the programs that used only this form.
    fn encode(ranges: &[(u32, u64, Vec<u8>)]) -> Vec<u8> {
        let mut payload = (ranges.len() as u64).to_le_bytes().to_vec();
        for (segment, offset, bytes) in ranges {
            payload.extend_from_slice(&u64::from(*segment).to_le_bytes());
            payload.extend_from_slice(&offset.to_le_bytes());
            payload.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            payload.extend_from_slice(bytes);
            payload.resize(payload.len().next_multiple_of(ALIGN), 0);
        }
        payload
    }

    fn decoded(payload: &[u8]) -> Result<Vec<(u32, u64, Vec<u8>)>, RecordDecodeError> {
        let changes = decode(KIND_TRANSACTION, payload)?;
        let ranges: Vec<_> = changes
            .ranges()
            .map(|range| (range.segment, range.offset, range.bytes.to_vec()))
            .collect();
        assert_eq!(ranges.len(), changes.count() as usize);
        Ok(ranges)
    }

    fn ranges() -> impl Strategy<Value = Vec<(u32, u64, Vec<u8>)>> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..40);
        proptest::collection::vec((any::<u32>(), 0..u64::MAX / 2, bytes), 0..6)
    }

    proptest! {
        #[test]
        fn records_of_older_programs_are_decoded(ranges in ranges()) {
            prop_assert_eq!(decoded(&encode(&ranges)).unwrap(), ranges);
        }

        #[test]
        fn arbitrary_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded(&payload);
        }

        #[test]
        fn a_flipped_bit_never_reads_outside_the_payload(
            ranges in ranges(),
            at in 0usize..200,
            bit in 0u8..8,
        ) {
            let mut payload = encode(&ranges);
            if at < payload.len() {
                payload[at] ^= 1 << bit;
            }
            let _ = decoded(&payload);
        }

        #[test]
        fn every_truncated_payload_is_refused(ranges in ranges(), cut in 1usize..50) {
            let payload = encode(&ranges);
            let kept = payload.len().saturating_sub(cut);
            prop_assert!(decoded(&payload[..kept]).is_err());
        }
    }

    #[test]
    fn padding_and_the_count_are_checked() {
        let mut payload = encode(&[(1, 2, vec![9])]);
        assert_eq!(payload.len(), 8 + 24 + 8);
        payload[39] = 1;
        assert_eq!(decoded(&payload), Err(RecordDecodeError::Reserved));
        payload[39] = 0;
        payload[0] = 2;
        assert_eq!(decoded(&payload), Err(RecordDecodeError::Count));
        payload[0] = 0;
        assert_eq!(decoded(&payload), Err(RecordDecodeError::Count));
    }
}
