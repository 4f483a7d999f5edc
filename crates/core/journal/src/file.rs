//! A real file behind `proto`'s [`StorageFile`].

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
    /// Wraps an open file.
    pub fn new(file: StdFile) -> DiskFile {
        DiskFile {
            file,
            sync_delay: Duration::ZERO,
        }
    }

    /// Wraps an open file and adds `delay` to every sync.
    pub fn with_sync_delay(file: StdFile, delay: Duration) -> DiskFile {
        DiskFile {
            file,
            sync_delay: delay,
        }
    }

    /// Drops the file's pages from the page cache, so that the next read returns what the *disk* has. After a
    /// failed sync the cache holds bytes that the disk never got.
    pub fn drop_cache(&self) {
        // Best effort: dirty pages stay, and the next sync writes them.
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// The system's error in `proto`'s form.
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
