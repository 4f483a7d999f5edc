//! Records of volumes: what they were made with, and whether they have a file system. They lie beside the
//! volumes, so that a volume stays one of netram's.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::refusal::{VolumeRefusal, failed};
use crate::volume_id::VolumeId;

/// Record of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VolumeRecord {
    /// The name that it was asked for by.
    pub name: String,
    /// Parameters that it was made with.
    pub parameters: BTreeMap<String, String>,
    /// The file system that was made on it. Then no other is ever made.
    #[serde(default)]
    pub file_system: Option<String>,
}

/// Directory of records.
#[derive(Clone, Debug)]
pub(crate) struct RecordDirectory(PathBuf);

impl RecordDirectory {
    /// Opens the directory, which is made if it is missing.
    pub(crate) fn open(path: PathBuf) -> Result<RecordDirectory, VolumeRefusal> {
        let mut builder = fs::DirBuilder::new();
        builder
            .mode(0o700)
            .recursive(true)
            .create(&path)
            .map_err(failed(&path))?;
        Ok(RecordDirectory(path))
    }

    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, id: &VolumeId, ending: &str) -> PathBuf {
        self.0.join(format!("{id}.{ending}"))
    }

    /// Reads a record; `None` if there is none.
    pub(crate) fn read(&self, id: &VolumeId) -> Result<Option<VolumeRecord>, VolumeRefusal> {
        let path = self.file(id, "json");
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed(&path))?,
        };
        let parsed = serde_json::from_slice(&bytes).map_err(io::Error::from);
        parsed.map(Some).map_err(failed(&path))
    }

    /// Writes a record durably; a crash leaves the former one.
    pub(crate) fn write(&self, id: &VolumeId, record: &VolumeRecord) -> Result<(), VolumeRefusal> {
        let path = self.file(id, "json");
        let text = serde_json::to_vec(record).map_err(io::Error::from);
        let written = text.and_then(|text| replace(&path, &text));
        written.map_err(failed(&path))
    }

    /// Writes the key of a volume's lenders durably. Returns its file's name in the directory.
    pub(crate) fn write_key(&self, id: &VolumeId, key: &str) -> Result<String, VolumeRefusal> {
        let path = self.file(id, "key");
        replace(&path, key.as_bytes()).map_err(failed(&path))?;
        Ok(format!("{id}.key"))
    }

    /// Removes everything that is kept of a volume.
    pub(crate) fn remove(&self, id: &VolumeId) -> Result<(), VolumeRefusal> {
        for ending in ["key", "json"] {
            let path = self.file(id, ending);
            match fs::remove_file(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => (),
                removed => removed.map_err(failed(&path))?,
            }
        }
        Ok(())
    }

    /// Takes the directory for this process, until it ends.
    pub(crate) fn lock(&self) -> Result<File, VolumeRefusal> {
        let path = self.0.join("lock");
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(failed(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(fs::TryLockError::WouldBlock) => Err(VolumeRefusal::Precondition(format!(
                "another netram-csi drives the volumes of {}: end that first, or give another --directory",
                self.0.parent().unwrap_or(&self.0).display()
            ))),
            Err(fs::TryLockError::Error(error)) => Err(failed(&path)(error)),
        }
    }
}

/// Replaces a file as a whole, durably.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = path.with_added_extension("new");
    let mut options = OpenOptions::new();
    let mut file = options
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
}
