//! The block device interface of a volume: sectors that are read, written and made durable.

use netram_proto::id::Lsn;

use crate::error::DeviceError;
use crate::limit::REQUEST_BYTES_MAX;

/// Bytes of a sector. Requests begin and end at its multiples; disks write it whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a block: the unit of checksums and of memory, and the preferred size of requests. A volume is a
/// whole number of blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// Size and limits of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Size in bytes, a multiple of [`BLOCK_BYTES`]. May grow while the device is open, never shrinks.
    pub bytes: u64,
    /// Maximum bytes of one read or write. `zero` and `discard` have no limit.
    pub request_bytes_max: u32,
}

/// A logged write that is not yet durable: the end of its record in the journal. Ordered, so that waiting for
/// the greatest waits for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingWrite(pub Lsn);

/// A volume as a block device.
///
/// A write has two halves, so that a front end can log many requests and wait only for the last.
/// [`BlockDevice::write`] puts it in its place in the order of writes; [`BlockDevice::wait`] completes it.
/// Only a completed write may be answered. Overlapping requests in flight take effect in the order of their
/// first halves.
pub trait BlockDevice: Send + Sync {
    /// Current size and limits.
    fn geometry(&self) -> DeviceGeometry;

    /// Fills `into` with the newest bytes from `offset`, completed or not.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Logs a write in order. It is not durable yet. Waits only for room (backpressure).
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError>;

    /// Logs that the range reads as zeros. Costs one small record for any length.
    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError>;

    /// Logs that the range is not used any more. Here it reads as zeros too, so that results stay
    /// deterministic.
    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError>;

    /// Waits until everything up to `pending` meets the commit rule or is on the local disk.
    fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError>;

    /// FLUSH, and FUA after its write: waits until everything logged before is durable by the volume's flush
    /// policy.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Reports the runs of `[offset, offset + length)` in order: length in bytes, and whether it is a hole,
    /// which reads as zeros and takes no space. Stops when `each` returns `false`.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError>;

    /// Takes and releases the locks that every request needs. None of them is held during a wait for a disk
    /// or lenders, so a watchdog calls this to detect a hang. A device without locks does nothing.
    fn probe(&self) {}
}

/// A range of sectors inside a device. Only [`SectorSpan::check`] and [`SectorSpan::check_request`] create
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorSpan {
    offset: u64,
    length: u64,
}

impl SectorSpan {
    /// Checks a range of any length against a device of `bytes`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Unaligned`] or [`DeviceError::OutOfRange`].
    pub fn check(offset: u64, length: u64, bytes: u64) -> Result<SectorSpan, DeviceError> {
        if !offset.is_multiple_of(SECTOR_BYTES) || !length.is_multiple_of(SECTOR_BYTES) {
            return Err(DeviceError::Unaligned { offset, length });
        }
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(SectorSpan { offset, length }),
            _ => Err(DeviceError::OutOfRange {
                offset,
                length,
                bytes,
            }),
        }
    }

    /// Checks the range of a request that carries its bytes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::TooLarge`], [`DeviceError::Unaligned`] or [`DeviceError::OutOfRange`].
    pub fn check_request(offset: u64, length: usize, bytes: u64) -> Result<SectorSpan, DeviceError> {
        if length > REQUEST_BYTES_MAX as usize {
            return Err(DeviceError::TooLarge {
                bytes: length as u64,
                max: REQUEST_BYTES_MAX,
            });
        }
        SectorSpan::check(offset, length as u64, bytes)
    }

    /// Offset in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Offset of the first byte behind the range.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sectors_inside_the_device_are_accepted() {
        assert!(SectorSpan::check(0, 8192, 8192).is_ok());
        assert!(SectorSpan::check(8192, 0, 8192).is_ok());
        for (offset, length) in [(1, 512), (0, 511)] {
            let refused = SectorSpan::check(offset, length, 8192);
            assert!(
                matches!(refused, Err(DeviceError::Unaligned { .. })),
                "{offset} {length}"
            );
        }
        for (offset, length) in [
            (0, 8704),
            (8192, 512),
            (u64::MAX - 511, 512),
            (512, u64::MAX - 511),
        ] {
            let refused = SectorSpan::check(offset, length, 8192);
            assert!(
                matches!(refused, Err(DeviceError::OutOfRange { .. })),
                "{offset} {length}"
            );
        }
        let huge = REQUEST_BYTES_MAX as usize + 512;
        let refused = SectorSpan::check_request(0, huge, u64::MAX);
        assert!(matches!(refused, Err(DeviceError::TooLarge { .. })));
    }
}
