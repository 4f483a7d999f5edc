//! Deleting a journal: its files go, the log first, and its lenders are told.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use netram_transport::Address;

use crate::error::{DeleteError, OpenError};
use crate::open::open_view;
use crate::over::{Deleting, List, PATIENCE, Untold, Windows};
use crate::place::{Layout, Place, remove};

impl Place {
    /// Deletes the journal, its segment table and its settings. What a deletion that was cut off has left is deleted, too. Segments stay.
    ///
    /// `lenders` and the members of the last view are told that they may free `windows`. Those returned were away, and will be told when a program
    /// of this user opens a journal; or they hold what this log lacks. `key` is the cluster key's file.
    ///
    /// # Errors
    /// The journal was not closed and `windows` are those of which its log has every byte; it is open, there is none, its directory holds something else, or the system refuses. Before [`DeleteError::Io`] some files may
    /// be gone: deleting again deletes the rest.
    pub fn delete(
        &self,
        list: Option<List>,
        windows: Windows,
        lenders: &[Address],
        key: Option<&Path>,
    ) -> Result<Vec<Untold>, DeleteError> {
        // Without its lock file no process has the journal, or can have it: an earlier deletion got that far.
        let _lock = match self.lock_file().try_exists().unwrap_or(true) {
            true => Some(self.lock()?),
            false if self.log().exists() => {
                let path = self.lock_file();
                return Err(OpenError::NoLock { path }.into());
            }
            false => None,
        };
        // Cut off behind the last file, a deletion has left nothing but whom to tell.
        let begun = list.as_ref().is_some_and(|list| list.has_begun(self.root()));
        if !begun && !self.files().iter().any(|file| file.exists()) {
            return Err(DeleteError::NoJournal {
                path: self.root().to_path_buf(),
            });
        }
        if let Some(path) = self.foreign()? {
            return Err(DeleteError::Foreign { path });
        }
        let places = std::slice::from_ref(self);
        if windows == Windows::Logged
            && let lenders = self.counts_on()
            && !lenders.is_empty()
        {
            return Err(DeleteError::NotClosed {
                path: self.root().to_path_buf(),
                lenders: lenders.join(", "),
            });
        }
        let deleting = Deleting::begin(list, self.root(), places, windows, lenders, key);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| DeleteError::Io { path, source }
        };
        let sync = |folder: &Path| {
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(failed(folder))
        };
        let folder = match self.layout() {
            Layout::Directory => self.root(),
            Layout::Beside => self.parent(),
        };
        let files = self.files();
        if folder.exists() {
            for (number, file) in files.iter().enumerate() {
                remove(file).map_err(failed(file))?;
                // Without its log there is no journal; the lock goes only after the rest.
                if number == 0 || number + 2 == files.len() {
                    sync(folder)?;
                }
            }
            if self.layout() == Layout::Directory {
                fs::remove_dir(self.root()).map_err(failed(self.root()))?;
            }
        }
        sync(self.parent())?;
        Ok(deleting.map_or_else(Vec::new, |deleting| deleting.done(PATIENCE)))
    }

    /// The lenders that may alone have its newest commits, as its durable view says: it was not closed. None if the view is gone or cannot be read.
    pub fn counts_on(&self) -> Vec<String> {
        let Ok(file) = open_view(self, false) else {
            return Vec::new();
        };
        let view = file.newest();
        match view.answers() {
            0 => Vec::new(),
            _ => view.members.iter().map(|member| member.address.clone()).collect(),
        }
    }

    /// The journal's files in the order in which they go.
    fn files(&self) -> [PathBuf; 6] {
        [
            self.log(),
            self.view(),
            self.key(),
            self.table(),
            self.settings(),
            self.lock_file(),
        ]
    }

    /// Something in the journal's directory that is not the journal's.
    fn foreign(&self) -> Result<Option<PathBuf>, DeleteError> {
        if self.layout() == Layout::Beside || !self.root().exists() {
            return Ok(None);
        }
        let failed = |source| DeleteError::Io {
            path: self.root().to_path_buf(),
            source,
        };
        let files = self.files();
        for entry in fs::read_dir(self.root()).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if !files.contains(&path) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }
}
