//! A write request as the payload of a journal record.
//!
//! ```text
//! kind 32, a write:                     kind 33, zeros (write-zeroes and discard):
//!  0  offset u64                         0  offset u64
//!  8  data                               8  length u64
//! ```

use netram_proto::port::RecordKind;

use crate::device::SectorSpan;

/// Record kind of a write: an offset and the bytes.
pub const KIND_WRITE: RecordKind = RecordKind(32);
/// Record kind of a range that reads as zeros.
pub const KIND_ZERO: RecordKind = RecordKind(33);

/// Bytes of a write's payload before the data.
pub(crate) const WRITE_HEADER_BYTES: usize = 8;
/// Bytes of the payload of zeros.
pub(crate) const ZERO_BYTES: usize = 16;

/// A change of the volume by one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeChange<'a> {
    /// Bytes are written.
    Write {
        /// Range of the bytes, as long as `data`.
        span: SectorSpan,
        /// The bytes.
        data: &'a [u8],
    },
    /// The range reads as zeros.
    Zero(SectorSpan),
}

/// Failure to decode a record: it is damaged, or does not belong to this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeDecodeError {
    /// The record's kind is not one of a volume's.
    #[error("record kind {0} does not exist in volumes")]
    Kind(u8),
    /// The record has too few bytes for its kind.
    #[error("{0} bytes are too few for its kind")]
    Short(usize),
    /// The record's range is not whole sectors inside the volume.
    #[error("{length} bytes at offset {offset} are not sectors of this volume")]
    Range {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl VolumeChange<'_> {
    /// Bytes of the payload.
    pub(crate) fn payload_bytes(&self) -> usize {
        match self {
            VolumeChange::Write { data, .. } => WRITE_HEADER_BYTES + data.len(),
            VolumeChange::Zero(_) => ZERO_BYTES,
        }
    }

    pub(crate) fn kind(&self) -> RecordKind {
        match self {
            VolumeChange::Write { .. } => KIND_WRITE,
            VolumeChange::Zero(_) => KIND_ZERO,
        }
    }

    /// Encodes the payload, which must fill `into`.
    pub(crate) fn encode(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.payload_bytes());
        match self {
            VolumeChange::Write { span, data } => {
                into[..8].copy_from_slice(&span.offset().to_le_bytes());
                into[WRITE_HEADER_BYTES..].copy_from_slice(data);
            }
            VolumeChange::Zero(span) => {
                into[..8].copy_from_slice(&span.offset().to_le_bytes());
                into[8..].copy_from_slice(&span.length().to_le_bytes());
            }
        }
    }
}

/// Decodes a record of a volume of `bytes`. `None`: a record of the journal's own.
///
/// # Errors
///
/// [`VolumeDecodeError`] if the kind, the length or the range is invalid.
pub fn decode(
    kind: RecordKind,
    payload: &[u8],
    bytes: u64,
) -> Result<Option<VolumeChange<'_>>, VolumeDecodeError> {
    const KIND_USER_MIN: RecordKind = RecordKind(16);
    if kind < KIND_USER_MIN {
        return Ok(None);
    }
    let (offset, rest) = payload
        .split_first_chunk::<8>()
        .ok_or(VolumeDecodeError::Short(payload.len()))?;
    let offset = u64::from_le_bytes(*offset);
    let span = |length| {
        let checked = SectorSpan::check(offset, length, bytes);
        checked.map_err(|_| VolumeDecodeError::Range { offset, length })
    };
    match kind {
        KIND_WRITE => Ok(Some(VolumeChange::Write {
            span: span(rest.len() as u64)?,
            data: rest,
        })),
        KIND_ZERO => {
            let length = <[u8; 8]>::try_from(rest).map_err(|_| VolumeDecodeError::Short(payload.len()))?;
            Ok(Some(VolumeChange::Zero(span(u64::from_le_bytes(length))?)))
        }
        RecordKind(other) => Err(VolumeDecodeError::Kind(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_decodes_to_what_was_encoded() {
        let data = [7; 1024];
        let changes = [
            VolumeChange::Write {
                span: SectorSpan::check(512, 1024, 8192).unwrap(),
                data: &data,
            },
            VolumeChange::Zero(SectorSpan::check(4096, 4096, 8192).unwrap()),
        ];
        for change in changes {
            let mut payload = vec![0; change.payload_bytes()];
            change.encode(&mut payload);
            assert_eq!(decode(change.kind(), &payload, 8192), Ok(Some(change)));
            // In a smaller volume the range is beyond the end.
            let refused = decode(change.kind(), &payload, 1024);
            assert!(
                matches!(refused, Err(VolumeDecodeError::Range { .. })),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_record_that_is_not_of_a_volume_is_refused() {
        assert_eq!(decode(RecordKind(3), &[], 8192), Ok(None));
        assert_eq!(
            decode(KIND_WRITE, &[0; 7], 8192),
            Err(VolumeDecodeError::Short(7))
        );
        assert_eq!(
            decode(KIND_ZERO, &[0; 15], 8192),
            Err(VolumeDecodeError::Short(15))
        );
        assert_eq!(
            decode(RecordKind(16), &[0; 8], 8192),
            Err(VolumeDecodeError::Kind(16))
        );
        let refused = decode(KIND_WRITE, &[0; 9], 8192);
        assert!(
            matches!(refused, Err(VolumeDecodeError::Range { .. })),
            "{refused:?}"
        );
    }
}
