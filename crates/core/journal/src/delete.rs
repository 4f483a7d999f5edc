//! Deleting a journal: its files go, the log first, and its lenders are told.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use netram_transport::Address;

use crate::error::{DeleteError, NotClosed, OpenError, ViewFileError};
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
    /// The journal was not closed and `windows` are not all; it is open, there is none, its directory holds something else, or the system refuses.
    /// Before [`DeleteError::Io`] some files may be gone: deleting again deletes the rest.
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
        if let Some(open) = self.not_closed(self.root(), windows)? {
            return Err(open.into());
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

    /// Why `what`, which is about to be deleted with this journal, must be kept: its durable view counts on lenders, and `windows` are not all.
    /// A view that is gone or damaged opens no journal, so it keeps none.
    ///
    /// # Errors
    /// The system refuses to read the view, which may count on lenders.
    pub fn not_closed(&self, what: &Path, windows: Windows) -> Result<Option<NotClosed>, OpenError> {
        let file = match open_view(self, false) {
            _ if windows == Windows::All => return Ok(None),
            Ok(file) => file,
            Err(OpenError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(
                error @ (OpenError::File { .. }
                | OpenError::View {
                    source: ViewFileError::Io(_),
                    ..
                }),
            ) => {
                return Err(error);
            }
            Err(_) => return Ok(None),
        };
        let view = file.newest();
        let lenders: Vec<&str> = view
            .members
            .iter()
            .map(|member| member.address.as_str())
            .collect();
        Ok((view.answers() > 0).then(|| NotClosed {
            path: what.to_path_buf(),
            lenders: lenders.join(", "),
        }))
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
