//! Containers that use volumes. They are files, so that a plugin that was killed still knows them; those of
//! an earlier boot are gone.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::file_system::make_directory;
use crate::record::RecordDirectory;
use crate::refusal::{VolumeRefusal, failed};
use crate::volume_id::VolumeId;

/// File with the name of this boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Beginning of the name of the directory with a boot's users.
const USERS: &str = "users.";

/// Table of the containers that use each volume.
#[derive(Debug)]
pub(super) struct VolumeUsers {
    directory: PathBuf,
    alone: Mutex<()>,
}

impl VolumeUsers {
    /// Opens the table of this boot, and removes those of earlier ones.
    pub(super) fn open(records: &RecordDirectory) -> Result<VolumeUsers, VolumeRefusal> {
        let boot = fs::read_to_string(BOOT).map_err(failed(BOOT))?;
        let directory = records.path().join(format!("{USERS}{}", boot.trim()));
        make_directory(&directory)?;
        for entry in fs::read_dir(records.path()).map_err(failed(records.path()))? {
            let path = entry.map_err(failed(records.path()))?.path();
            let is_users = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(USERS));
            if is_users && path != directory {
                fs::remove_dir_all(&path).map_err(failed(&path))?;
            }
        }
        Ok(VolumeUsers {
            directory,
            alone: Mutex::new(()),
        })
    }

    /// Waits until no other request mounts or unmounts.
    pub(super) fn alone(&self) -> MutexGuard<'_, ()> {
        self.alone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.as_str())
    }

    /// Returns a user's file. Docker names a user by digits and letters; Podman leaves the name out.
    fn file(&self, id: &VolumeId, user: &str) -> PathBuf {
        self.of(id).join(VolumeId::of_name(user).as_str())
    }

    /// Enters a user.
    pub(super) fn add(&self, id: &VolumeId, user: &str) -> Result<(), VolumeRefusal> {
        make_directory(&self.of(id))?;
        let path = self.file(id, user);
        File::create(&path).map(drop).map_err(failed(path))
    }

    /// Removes a user.
    pub(super) fn remove(&self, id: &VolumeId, user: &str) -> Result<(), VolumeRefusal> {
        let path = self.file(id, user);
        absent_is_well(fs::remove_file(&path), &path)
    }

    /// Whether a volume has other users.
    pub(super) fn others(&self, id: &VolumeId, user: &str) -> Result<bool, VolumeRefusal> {
        let path = self.of(id);
        let mine = self.file(id, user);
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries.map_err(failed(&path))?,
        };
        for entry in entries {
            if entry.map_err(failed(&path))?.path() != mine {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn absent_is_well(removed: io::Result<()>, path: &Path) -> Result<(), VolumeRefusal> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(failed(path)),
    }
}
