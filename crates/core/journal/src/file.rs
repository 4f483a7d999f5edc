//! A real file as `proto` sees one.

use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use netram_proto::port::{IoError, StorageFile};

/// A file of the local disk, with an optional delay that models a slower one.
#[derive(Debug)]
pub struct DiskFile {
    file: StdFile,
    /// Slept in every sync; zero unless a benchmark models a slower disk.
    sync_delay: Duration,
}

impl DiskFile {
    /// Takes an open file.
    pub fn new(file: StdFile) -> DiskFile {
        DiskFile {
            file,
            sync_delay: Duration::ZERO,
        }
    }

    /// The same with `delay` added to every sync.
    pub fn with_sync_delay(file: StdFile, delay: Duration) -> DiskFile {
        DiskFile {
            file,
            sync_delay: delay,
        }
    }

    /// Drops what the page cache holds of the file, so that the next read tells what the *disk* has: after a
    /// failed sync the cache shows bytes that the disk never got.
    pub fn drop_cache(&self) {
        // Best effort: dirty pages stay, and they are what the next sync will write.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// The system's error as `proto` carries it.
pub fn io_error(error: &std::io::Error) -> IoError {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => IoError::EOF,
        _ => IoError {
            errno: error.raw_os_error().unwrap_or(IoError::EIO.errno),
        },
    }
}

impl StorageFile for DiskFile {
    fn size(&self) -> Result<u64, IoError> {
        self.file
            .metadata()
            .map(|metadata| metadata.len())
            .map_err(|error| io_error(&error))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.file
            .read_exact_at(into, offset)
            .map_err(|error| io_error(&error))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| io_error(&error))
    }

    fn sync(&self) -> Result<(), IoError> {
        if !self.sync_delay.is_zero() {
            std::thread::sleep(self.sync_delay);
        }
        self.file.sync_data().map_err(|error| io_error(&error))
    }
}
