//! The catalog's file: a new one takes the old one's place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netram_files::Keep;
use netram_proto::port::IoError;
use netram_store::durable;

/// The file that has the catalog.
#[derive(Debug)]
pub(crate) struct CatalogFile {
    path: PathBuf,
}

fn told(error: io::Error) -> IoError {
    IoError {
        errno: error.raw_os_error().unwrap_or(IoError::EIO.errno),
    }
}

impl CatalogFile {
    /// The catalog of the journal in this folder.
    pub(crate) fn of(journal: &Path) -> CatalogFile {
        CatalogFile {
            path: journal.join("catalog"),
        }
    }
}

impl Keep for CatalogFile {
    fn load(&self) -> Result<Option<Vec<u8>>, IoError> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(told(error)),
        }
    }

    fn store(&self, bytes: &[u8]) -> Result<(), IoError> {
        durable::replace(&self.path, bytes).map_err(told)
    }

    fn clear(&self) -> Result<(), IoError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(told(error)),
            Ok(()) => durable::sync(self.path.parent().unwrap_or(Path::new("."))).map_err(told),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_is_kept_until_it_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let file = CatalogFile::of(folder.path());
        assert_eq!(file.load(), Ok(None));
        file.store(b"first").unwrap();
        file.store(b"second").unwrap();
        assert_eq!(file.load(), Ok(Some(b"second".to_vec())));
        file.clear().unwrap();
        file.clear().unwrap();
        assert_eq!(file.load(), Ok(None));
    }
}
