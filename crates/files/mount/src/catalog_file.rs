//! The catalog's file, replaced atomically.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use netram_files::CatalogStore;
use netram_journal::durable;
use netram_process::files::{self, FileAccess, FileRefusal};
use netram_proto::port::IoError;

/// The file that stores the catalog.
#[derive(Debug)]
pub(crate) struct CatalogFile {
    path: PathBuf,
}

fn io_error_of(error: io::Error) -> IoError {
    IoError {
        errno: error.raw_os_error().unwrap_or(IoError::EIO.errno),
    }
}

impl CatalogFile {
    /// Catalog file of the journal in this directory.
    pub(crate) fn of(journal: &Path) -> CatalogFile {
        CatalogFile {
            path: journal.join("catalog"),
        }
    }
}

impl CatalogStore for CatalogFile {
    fn load(&self) -> Result<Option<Vec<u8>>, IoError> {
        let mut file = match files::open(&self.path, FileAccess::Read) {
            Ok(file) => file,
            Err(FileRefusal::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(refusal) => {
                let path = self.path.display();
                tracing::error!(%path, %refusal, "the catalog is not read");
                return Err(IoError {
                    errno: refusal.errno(),
                });
            }
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error_of)?;
        Ok(Some(bytes))
    }

    fn store(&self, bytes: &[u8]) -> Result<(), IoError> {
        durable::replace(&self.path, bytes).map_err(io_error_of)
    }

    fn clear(&self) -> Result<(), IoError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(io_error_of(error)),
            Ok(()) => durable::sync(durable::directory_of(&self.path)).map_err(io_error_of),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_stored_catalog_is_loaded_until_it_is_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let file = CatalogFile::of(directory.path());
        assert_eq!(file.load(), Ok(None));
        file.store(b"first").unwrap();
        file.store(b"second").unwrap();
        assert_eq!(file.load(), Ok(Some(b"second".to_vec())));
        file.clear().unwrap();
        file.clear().unwrap();
        assert_eq!(file.load(), Ok(None));
    }
}
