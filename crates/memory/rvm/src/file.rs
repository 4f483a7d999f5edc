//! Plain files: reading without ever writing, durable names, and the system's errors.

use std::fs::File as StdFile;
use std::os::unix::fs::FileExt;
use std::path::Path;

use netram_process::files::{self, FileAccess, FileRefusal};
use netram_proto::port::{IoError, StorageFile};

/// A file that is never written.
#[derive(Debug)]
pub(crate) struct ReadOnlyFile(pub(crate) StdFile);

impl ReadOnlyFile {
    pub(crate) fn open(path: &Path) -> Result<ReadOnlyFile, IoError> {
        files::open(path, FileAccess::Read)
            .map(ReadOnlyFile)
            .map_err(|refusal| refused(&refusal))
    }
}

impl StorageFile for ReadOnlyFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0.metadata().map_err(io_error)?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.0.read_exact_at(into, offset).map_err(io_error)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), IoError> {
        // EBADF is the system's error for a descriptor that was opened for reading.
        Err(IoError { errno: 9 })
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

/// The system's number for a refusal: ELOOP for a link, EPERM for another user's file.
pub(crate) fn refused(refusal: &FileRefusal) -> IoError {
    match refusal {
        FileRefusal::System(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => IoError::EOF,
        refusal => IoError {
            errno: refusal.errno(),
        },
    }
}

/// Makes the name of a new file durable.
pub(crate) fn sync_parent(path: &str) -> Result<(), IoError> {
    let parent = match std::path::Path::new(path).parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => std::path::Path::new("."),
    };
    StdFile::open(parent)
        .and_then(|directory| directory.sync_all())
        .map_err(io_error)
}

pub(crate) fn io_error(error: std::io::Error) -> IoError {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return IoError::EOF;
    }
    error
        .raw_os_error()
        .map_or(IoError::EIO, |errno| IoError { errno })
}

pub(crate) fn errno(error: rustix::io::Errno) -> IoError {
    IoError {
        errno: error.raw_os_error(),
    }
}
