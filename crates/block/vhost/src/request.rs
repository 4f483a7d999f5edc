//! Requests of a guest's driver (virtio 1.2, section 5.2.6), without their data.

use netram_block::SECTOR_BYTES;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};

use crate::limit::{RANGE_BYTES, RANGES_MAX, SERIAL_BYTES};

/// Bytes before the data: type, four bytes that mean nothing, sector.
pub const HEADER_BYTES: usize = 16;

/// Operation that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockRequest {
    /// Read `length` bytes from `offset`.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Write the request's `length` bytes at `offset`.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Make durable whatever was answered.
    Flush,
    /// Tell the disk's name.
    Serial,
    /// Forget the ranges in the request's data.
    Discard {
        /// Number of ranges.
        ranges: usize,
    },
    /// Set the ranges in the request's data to zero.
    Zero {
        /// Number of ranges.
        ranges: usize,
    },
}

/// Refusals of a request, by the status that the guest gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRefusal {
    /// The disk does not know this operation.
    Unsupported,
    /// No disk could carry it out: its place or its data has a size that cannot be.
    Invalid,
}

/// A range of a discard or zero request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorRange {
    /// Offset in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Whether the space may be given back: only a zero request may say so.
    pub unmap: bool,
}

impl BlockRequest {
    /// The request with this header, `sent` bytes of data from the guest and place for `wanted` bytes of data
    /// for it.
    ///
    /// # Errors
    ///
    /// The status with which it is refused.
    pub fn parse(
        header: &[u8; HEADER_BYTES],
        sent: u64,
        wanted: u64,
    ) -> Result<BlockRequest, RequestRefusal> {
        let [kind, _, low, high] = fields(header);
        let sector = u64::from(low) | u64::from(high) << 32;
        let offset = || sector.checked_mul(SECTOR_BYTES).ok_or(RequestRefusal::Invalid);
        let ranges = || match usize::try_from(sent) {
            Ok(bytes) if bytes > 0 && bytes.is_multiple_of(RANGE_BYTES) => Ok(bytes / RANGE_BYTES),
            _ => Err(RequestRefusal::Invalid),
        };
        let ranges = || {
            ranges().and_then(|count| match count <= RANGES_MAX as usize {
                true => Ok(count),
                false => Err(RequestRefusal::Invalid),
            })
        };
        match kind {
            VIRTIO_BLK_T_IN => Ok(BlockRequest::Read {
                offset: offset()?,
                length: wanted,
            }),
            VIRTIO_BLK_T_OUT => Ok(BlockRequest::Write {
                offset: offset()?,
                length: sent,
            }),
            VIRTIO_BLK_T_FLUSH => Ok(BlockRequest::Flush),
            VIRTIO_BLK_T_GET_ID if wanted >= SERIAL_BYTES as u64 => Ok(BlockRequest::Serial),
            VIRTIO_BLK_T_GET_ID => Err(RequestRefusal::Invalid),
            VIRTIO_BLK_T_DISCARD => Ok(BlockRequest::Discard { ranges: ranges()? }),
            VIRTIO_BLK_T_WRITE_ZEROES => Ok(BlockRequest::Zero { ranges: ranges()? }),
            _ => Err(RequestRefusal::Unsupported),
        }
    }

    /// Whether it changes the disk.
    pub fn is_change(&self) -> bool {
        match self {
            BlockRequest::Write { .. } | BlockRequest::Discard { .. } | BlockRequest::Zero { .. } => true,
            BlockRequest::Read { .. } | BlockRequest::Flush | BlockRequest::Serial => false,
        }
    }
}

impl SectorRange {
    /// The range in `bytes`: first sector, number of sectors, flags.
    ///
    /// # Errors
    ///
    /// The status with which the request is refused: flags that are not defined must be.
    pub fn parse(bytes: &[u8; RANGE_BYTES]) -> Result<SectorRange, RequestRefusal> {
        let [low, high, count, flags] = fields(bytes);
        let sector = u64::from(low) | u64::from(high) << 32;
        if flags > 1 {
            return Err(RequestRefusal::Unsupported);
        }
        Ok(SectorRange {
            offset: sector.checked_mul(SECTOR_BYTES).ok_or(RequestRefusal::Invalid)?,
            length: u64::from(count) * SECTOR_BYTES,
            unmap: flags == 1,
        })
    }
}

fn fields(bytes: &[u8; 16]) -> [u32; 4] {
    std::array::from_fn(|index| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * index + byte])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u32, sector: u64) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        bytes
    }

    #[test]
    fn requests_are_read_with_their_place_and_size() {
        let parse = |kind, sector, sent, wanted| BlockRequest::parse(&header(kind, sector), sent, wanted);
        let (offset, length) = (16 * SECTOR_BYTES, 4096);
        assert_eq!(parse(0, 16, 0, 4096), Ok(BlockRequest::Read { offset, length }));
        assert_eq!(parse(1, 16, 4096, 0), Ok(BlockRequest::Write { offset, length }));
        assert_eq!(parse(4, 0, 0, 0), Ok(BlockRequest::Flush));
        assert_eq!(parse(8, 0, 0, 20), Ok(BlockRequest::Serial));
        assert_eq!(parse(11, 0, 32, 0), Ok(BlockRequest::Discard { ranges: 2 }));
        assert_eq!(parse(13, 0, 16, 0), Ok(BlockRequest::Zero { ranges: 1 }));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let parse = |kind, sector, sent, wanted| BlockRequest::parse(&header(kind, sector), sent, wanted);
        assert_eq!(parse(0, 1 << 60, 0, 512), Err(RequestRefusal::Invalid));
        assert_eq!(parse(8, 0, 0, 19), Err(RequestRefusal::Invalid));
        for bytes in [0, 15, 17, 16 * 17] {
            assert_eq!(parse(11, 0, bytes, 0), Err(RequestRefusal::Invalid), "{bytes}");
        }
        for kind in [2, 3, 5, 24, 26, u32::MAX] {
            assert_eq!(parse(kind, 0, 16, 16), Err(RequestRefusal::Unsupported), "{kind}");
        }
    }

    #[test]
    fn ranges_are_read_with_their_flag() {
        let range = |count: u32, flags: u32| {
            let mut bytes = [0; RANGE_BYTES];
            bytes[0] = 8;
            bytes[8..12].copy_from_slice(&count.to_le_bytes());
            bytes[12..].copy_from_slice(&flags.to_le_bytes());
            SectorRange::parse(&bytes)
        };
        let wanted = |length, unmap| {
            Ok(SectorRange {
                offset: 4096,
                length,
                unmap,
            })
        };
        assert_eq!(range(8, 0), wanted(4096, false));
        assert_eq!(range(u32::MAX, 1), wanted(u64::from(u32::MAX) * 512, true));
        assert_eq!(range(8, 2), Err(RequestRefusal::Unsupported));
    }
}
