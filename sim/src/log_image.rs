//! The bytes of a log in the image of its file.

use netram_proto::id::Lsn;
use netram_proto::limit::SLOT_BYTES;

/// The offset of the data area in a log file.
pub(crate) const DATA_OFFSET: usize = 2 * SLOT_BYTES;

/// Copies the log's bytes from `from` to `to` out of a file image.
pub(crate) fn image_bytes(image: &[u8], from: Lsn, to: Lsn) -> Vec<u8> {
    let data = &image[DATA_OFFSET..];
    let length = to.since(from) as usize;
    let start = (from.0 % data.len() as u64) as usize;
    let first = length.min(data.len() - start);
    let mut out = Vec::with_capacity(length);
    out.extend_from_slice(&data[start..start + first]);
    out.extend_from_slice(&data[..length - first]);
    out
}
