//! A device in memory: for tests, and as the baseline of measurements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use netram_block::{BLOCK_BYTES, BlockDevice, DeviceError, DeviceGeometry, PendingWrite, SECTOR_BYTES};

use crate::limit::REQUEST_BYTES_MAX;

struct Contents {
    bytes: Vec<u8>,
    /// Whether each block was written since it was last zeroed.
    data: Vec<bool>,
}

/// A device in memory that keeps nothing durably. Holes are whole blocks that were never written.
pub struct MemoryDevice {
    contents: RwLock<Contents>,
    flushes: AtomicU64,
}

impl MemoryDevice {
    /// Creates a device of `bytes` zeros, rounded up to whole blocks.
    pub fn new(bytes: u64) -> MemoryDevice {
        let bytes = bytes.next_multiple_of(BLOCK_BYTES);
        let contents = Contents {
            bytes: vec![0; bytes as usize],
            data: vec![false; (bytes / BLOCK_BYTES) as usize],
        };
        MemoryDevice {
            contents: RwLock::new(contents),
            flushes: AtomicU64::new(0),
        }
    }

    /// Number of flushes so far.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Makes the device larger while clients are connected.
    pub fn grow(&self, bytes: u64) {
        let mut contents = self.change();
        let bytes = bytes
            .next_multiple_of(BLOCK_BYTES)
            .max(contents.bytes.len() as u64);
        contents.bytes.resize(bytes as usize, 0);
        contents.data.resize((bytes / BLOCK_BYTES) as usize, false);
    }

    // A panic under the lock comes only from a caller's wrong index, which changes nothing.
    fn look(&self) -> RwLockReadGuard<'_, Contents> {
        self.contents
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn change(&self) -> RwLockWriteGuard<'_, Contents> {
        self.contents
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Contents {
    fn span(&self, offset: u64, length: u64) -> Result<std::ops::Range<usize>, DeviceError> {
        let bytes = self.bytes.len() as u64;
        if !offset.is_multiple_of(SECTOR_BYTES) || !length.is_multiple_of(SECTOR_BYTES) {
            return Err(DeviceError::Unaligned { offset, length });
        }
        match offset.checked_add(length) {
            Some(end) if end <= bytes => Ok(offset as usize..end as usize),
            _ => Err(DeviceError::OutOfRange {
                offset,
                length,
                bytes,
            }),
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            bytes: self.look().bytes.len() as u64,
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let contents = self.look();
        let span = contents.span(offset, into.len() as u64)?;
        into.copy_from_slice(&contents.bytes[span]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        let mut contents = self.change();
        let span = contents.span(offset, bytes.len() as u64)?;
        contents.bytes[span].copy_from_slice(bytes);
        let first = offset / BLOCK_BYTES;
        let end = (offset + bytes.len() as u64).div_ceil(BLOCK_BYTES);
        contents.data[first as usize..end as usize].fill(true);
        Ok(PendingWrite::default())
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let mut contents = self.change();
        let span = contents.span(offset, length)?;
        contents.bytes[span].fill(0);
        // Only blocks that are zero from end to end.
        let first = offset.div_ceil(BLOCK_BYTES);
        let end = (offset + length) / BLOCK_BYTES;
        if first < end {
            contents.data[first as usize..end as usize].fill(false);
        }
        Ok(PendingWrite::default())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.zero(offset, length)
    }

    fn wait(&self, _: PendingWrite) -> Result<(), DeviceError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        let contents = self.look();
        let span = contents.span(offset, length)?;
        let mut at = span.start;
        while at < span.end {
            let block = at / BLOCK_BYTES as usize;
            let end = span.end.min((block + 1) * BLOCK_BYTES as usize);
            if !each((end - at) as u64, !contents.data[block]) {
                break;
            }
            at = end;
        }
        Ok(())
    }
}
