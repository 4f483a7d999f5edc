//! A disk with a volatile cache: writes stay in this process's memory until they are flushed, and die with
//! it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_block::limit::REQUEST_BYTES_MAX;
use netram_block::{BlockDevice, DeviceError, DeviceGeometry, PendingWrite, SECTOR_BYTES, SectorSpan};
use netram_proto::port::IoError;

/// Environment variable that names the image to serve.
pub(crate) const SERVE: &str = "NETRAM_ATTACH_SERVE";

type Sector = [u8; SECTOR_BYTES as usize];

/// A file behind a write cache.
pub(crate) struct CachedDevice {
    image: File,
    bytes: u64,
    /// One byte for each flush, for the test to count.
    flushes: File,
    cache: Mutex<BTreeMap<u64, Sector>>,
}

impl CachedDevice {
    pub(crate) fn open(path: &Path) -> io::Result<CachedDevice> {
        let image = OpenOptions::new().read(true).write(true).open(path)?;
        let flushes = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path.with_extension("flushes"))?;
        Ok(CachedDevice {
            bytes: image.metadata()?.len(),
            image,
            flushes,
            cache: Mutex::new(BTreeMap::new()),
        })
    }

    pub(crate) fn shared(self) -> Arc<dyn BlockDevice> {
        Arc::new(self)
    }

    fn cache(&self) -> MutexGuard<'_, BTreeMap<u64, Sector>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, span: SectorSpan, sectors: impl Iterator<Item = Sector>) -> PendingWrite {
        let numbers = span.offset() / SECTOR_BYTES..span.end() / SECTOR_BYTES;
        self.cache().extend(numbers.zip(sectors));
        PendingWrite::default()
    }
}

fn failed(error: io::Error) -> DeviceError {
    DeviceError::Io(IoError {
        errno: error.raw_os_error().unwrap_or(IoError::EIO.errno),
    })
}

impl BlockDevice for CachedDevice {
    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            bytes: self.bytes,
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        let span = SectorSpan::check_request(offset, into.len(), self.bytes)?;
        let cache = self.cache();
        self.image.read_exact_at(into, offset).map_err(failed)?;
        let numbers = span.offset() / SECTOR_BYTES..span.end() / SECTOR_BYTES;
        for (number, sector) in cache.range(numbers) {
            let at = (number * SECTOR_BYTES - offset) as usize;
            into[at..][..sector.len()].copy_from_slice(sector);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        let span = SectorSpan::check_request(offset, bytes.len(), self.bytes)?;
        let (sectors, _) = bytes.as_chunks();
        Ok(self.put(span, sectors.iter().copied()))
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let span = SectorSpan::check(offset, length, self.bytes)?;
        Ok(self.put(span, std::iter::repeat([0; SECTOR_BYTES as usize])))
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        self.zero(offset, length)
    }

    fn wait(&self, _: PendingWrite) -> Result<(), DeviceError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut cache = self.cache();
        for (number, sector) in std::mem::take(&mut *cache) {
            let written = self.image.write_all_at(&sector, number * SECTOR_BYTES);
            written.map_err(failed)?;
        }
        (&self.flushes).write_all(b"f").map_err(failed)
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        SectorSpan::check(offset, length, self.bytes)?;
        each(length, false);
        Ok(())
    }
}
