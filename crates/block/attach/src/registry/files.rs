//! A record, and the files of the registry: each is replaced as a whole, or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::RECORD;
use netram_supervise::ProcessIdentity;

/// Record of an attached volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRecord {
    /// Name of the attachment.
    pub name: String,
    /// The volume, as an absolute path.
    pub volume: PathBuf,
    /// The block device.
    pub device: PathBuf,
    /// A link to the device, with the same path every time.
    pub link: PathBuf,
    /// Name of the attach method.
    pub way: String,
    /// Bytes of the device's logical block.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The served file, as a path into the supervisor's descriptors; empty if there is none.
    #[serde(default)]
    pub file: PathBuf,
    /// The supervisor process.
    pub supervisor: ProcessIdentity,
    /// The server process, which has the volume open.
    pub server: ProcessIdentity,
    /// Number of servers that died before this one.
    #[serde(default)]
    pub restarts: u32,
}

/// Failure of a registry file.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct RegistryError {
    /// The file.
    pub path: PathBuf,
    /// Error from the operating system.
    pub source: io::Error,
}

/// Creates the record's link through the temporary link `fresh`, so that it always leads to a device.
/// Replaces only a link.
pub(super) fn make_link(record: &AttachRecord, fresh: &Path) -> Result<(), RegistryError> {
    let link = &record.link;
    if link.symlink_metadata().is_ok_and(|there| !there.is_symlink()) {
        let taken = io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the device's link belongs here, but another file exists; remove it, or give another --name",
        );
        return Err(failed(link)(taken));
    }
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(fresh)(error)),
        _ => {}
    }
    symlink(&record.device, fresh).map_err(failed(fresh))?;
    fs::rename(fresh, link).map_err(failed(link))
}

/// Replaces a record as a whole.
pub(super) fn write_record(record: &AttachRecord, directory: &Path) -> Result<(), RegistryError> {
    let (path, fresh) = (directory.join(RECORD), directory.join("record.new"));
    let text = serde_json::to_vec_pretty(record).map_err(|error| failed(&path)(error.into()))?;
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(&fresh)
        .and_then(|mut file| {
            // A record has no secret, and the volume's user may see it.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(&text)
        });
    written.map_err(failed(&fresh))?;
    fs::rename(&fresh, &path).map_err(failed(&path))
}

/// Creates a directory in which everybody may look, whatever the mask of this process is.
pub(super) fn public_directory(path: &Path) -> Result<(), RegistryError> {
    if path.is_dir() {
        return Ok(());
    }
    let made =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o755)));
    made.map_err(failed(path))
}

pub(super) fn lock_file(path: &Path) -> Result<File, RegistryError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    options.open(path).map_err(failed(path))
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> RegistryError + use<> {
    let path = path.to_path_buf();
    move |source| RegistryError {
        path: path.clone(),
        source,
    }
}
