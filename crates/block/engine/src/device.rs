//! What a front end sees of a volume: sectors that are read, written and made durable.

use netram_proto::id::Lsn;

use crate::error::DeviceError;
use crate::limit::REQUEST_BYTES_MAX;

/// Requests begin and end at multiples of this: what disks write whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
/// The unit of checksums and of memory, and the preferred size of requests. Volumes are whole blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// A device's size, and what it takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// Bytes of the device, a multiple of [`BLOCK_BYTES`]. May grow while it is open, never shrinks.
    pub bytes: u64,
    /// Bytes that one read or write may have. `zero` and `discard` may have any length.
    pub request_bytes_max: u32,
}

/// What was logged: everything below this position of the journal. Ordered, so that waiting for the greatest
/// waits for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PendingWrite(pub Lsn);

/// A volume as a block device.
///
/// A write is in two halves, so that a front end can log many requests of a connection and wait once, for the
/// last: [`BlockDevice::write`] puts it in its place in the order of writes, [`BlockDevice::wait`] completes
/// it. Only a completed write may be answered. Requests that overlap while both are in flight take effect in
/// the order of the first halves.
pub trait BlockDevice: Send + Sync {
    /// The size now.
    fn geometry(&self) -> DeviceGeometry;

    /// Fills `into` from `offset`: the newest bytes, whether completed or not.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError>;

    /// Logged in order and on its way; not yet safe. Waits only for room (back-pressure).
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError>;

    /// The range reads as zeros afterwards. Costs one small record, whatever the length.
    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError>;

    /// The range is of no use any more. Here it reads as zeros afterwards too, so that nothing depends on
    /// luck.
    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError>;

    /// Everything up to `pending` is held as the commit rule demands, or on the disk.
    fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError>;

    /// FLUSH, and FUA after its write: everything logged before is durable as the volume's flush setting
    /// says.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Runs of `[offset, offset + length)` in order: their length, and whether they are holes, which read as
    /// zeros and take no space. Stops when `each` returns `false`.
    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError>;

    /// Takes and leaves the locks that every request needs, none of which is held while a disk or lenders are
    /// waited for. Whoever watches whether this process hangs asks for that; a device without locks has
    /// nothing to do.
    fn probe(&self) {}
}

/// A range of sectors inside a device: only its checks make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorSpan {
    offset: u64,
    length: u64,
}

impl SectorSpan {
    /// A range of a device of `bytes`, of any length.
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

    /// The same for a request that carries its bytes.
    pub fn check_request(offset: u64, length: usize, bytes: u64) -> Result<SectorSpan, DeviceError> {
        if length > REQUEST_BYTES_MAX as usize {
            return Err(DeviceError::TooLarge {
                bytes: length as u64,
                max: REQUEST_BYTES_MAX,
            });
        }
        SectorSpan::check(offset, length as u64, bytes)
    }

    /// Where it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_sectors_inside_the_device_pass() {
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
