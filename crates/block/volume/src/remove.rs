//! Deleting a volume, or the remains of an interrupted deletion.
//!
//! The superblock goes first: without it the directory is no volume. The image goes last, because its first
//! block identifies the remains as a volume's.
//! that what is left was one.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use netram_block::{VolumeSuperblock, is_of_a_volume};
use netram_journal::forget::{ForgetList, JournalDeletion, PATIENCE, UnfreedWindow, WindowRelease};
use netram_journal::{JournalLayout, JournalPaths as JournalPlace};

use crate::error::VolumeDeleteError;
use crate::file::VolumeFile;
use crate::paths::{CONTROL, VolumePaths};
use crate::replica::{ReplicaHeaderFile, scrub_file};
use crate::settings::VolumeSettings;

impl VolumePaths {
    /// Deletes the volume and all its files, complete or not. Fails if it is open or does not exist.
    ///
    /// Its lenders are told that they may free `windows`. Returns the lenders that were away and will be told
    /// later, or that hold records which the volume's log lacks.
    ///
    /// # Errors
    ///
    /// [`VolumeDeleteError`] if there is no volume, it is open or not closed, or a file cannot be removed.
    pub fn delete(&self, windows: WindowRelease) -> Result<Vec<UnfreedWindow>, VolumeDeleteError> {
        self.check_that_it_is_ours()?;
        let failed = |path: PathBuf| move |source| VolumeDeleteError::Io { path, source };
        let journal = JournalPlace::of(&self.journal(), JournalLayout::Directory);
        // Without the lock file no process has or can get the journal: an earlier deletion got that far.
        let _lock = match journal.lock_file().try_exists().unwrap_or(true) {
            true => Some(journal.lock()?),
            false => None,
        };
        if let Some(open) = journal.not_closed(self.root(), windows)? {
            return Err(open.into());
        }
        // If the settings cannot be read, the members of the view are told all the same.
        let settings = VolumeSettings::load(&self.settings_file()).ok();
        let settings = settings.and_then(|file| file.with_environment(&|name| std::env::var(name).ok()).ok());
        let home = settings.map(|settings| settings.journal).unwrap_or_default();
        let places = [journal.clone()];
        let key = home.key_file.as_deref();
        let deleting = JournalDeletion::begin(
            ForgetList::usual(),
            self.root(),
            &places,
            windows,
            &home.lenders,
            key,
        );
        let remove = |path: PathBuf| absent_is_well(fs::remove_file(&path)).map_err(failed(path));
        let sync = || {
            let synced = File::open(self.root()).and_then(|directory| directory.sync_all());
            synced.map_err(failed(self.root().to_path_buf()))
        };
        remove(self.superblock())?;
        sync()?;
        absent_is_well(fs::remove_dir_all(self.journal())).map_err(failed(self.journal()))?;
        remove(self.sums())?;
        remove(self.dirty())?;
        remove(ReplicaHeaderFile::path(self.root()))?;
        remove(self.unannounced())?;
        remove(self.recovery())?;
        remove(scrub_file(self.root()))?;
        remove(self.settings_file())?;
        // Left by a killed process: no process has the volume open.
        remove(self.root().join(CONTROL))?;
        sync()?;
        remove(self.image())?;
        // Other files in the directory are not netram's; then the directory stays.
        fs::remove_dir(self.root()).map_err(failed(self.root().to_path_buf()))?;
        Ok(deleting.map_or_else(Vec::new, |deleting| deleting.done(PATIENCE)))
    }

    /// Checks that the directory is a volume: it has a superblock, or the image or the checksums of one.
    fn check_that_it_is_ours(&self) -> Result<(), VolumeDeleteError> {
        let left = [self.image(), self.sums()];
        if left
            .iter()
            .any(|path| VolumeFile::open(path, false).is_ok_and(|file| is_of_a_volume(&file)))
        {
            return Ok(());
        }
        let path = self.superblock();
        let file = VolumeFile::open(&path, false).map_err(|source| VolumeDeleteError::Io { path, source })?;
        let read = VolumeSuperblock::read(&file).map_err(|cause| VolumeDeleteError::NoVolume {
            path: self.root().to_path_buf(),
            cause,
        });
        read.map(drop)
    }
}

fn absent_is_well(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
