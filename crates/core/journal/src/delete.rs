//! Deleting a journal: its files are removed, the log first, and its lenders are told to free their windows.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use netram_transport::NetAddress;

use crate::error::{JournalDeleteError, JournalNotClosed, JournalOpenError, ViewFileError};
use crate::forget::{ForgetList, JournalDeletion, PATIENCE, UnfreedWindow, WindowRelease};
use crate::open::open_view;
use crate::paths::{JournalLayout, JournalPaths, remove};

impl JournalPaths {
    /// Deletes the journal, its segment table and its settings, and the remains of an interrupted deletion.
    /// Segments stay.
    ///
    /// `lenders` and the members of the last view are told that they may free `windows`. The result lists
    /// lenders that hold bytes which this log lacks, and unreachable lenders. The latter are told when a
    /// program of this user next opens a journal. `key` is the cluster key's file.
    ///
    /// # Errors
    /// `NotClosed` if the journal was not closed and `windows` is not [`WindowRelease::All`]; `NoJournal`;
    /// `Journal` if it is open; `Foreign` for other files in its directory. After [`JournalDeleteError::Io`]
    /// some files may be gone; deleting again removes the rest.
    pub fn delete(
        &self,
        list: Option<ForgetList>,
        windows: WindowRelease,
        lenders: &[NetAddress],
        key: Option<&Path>,
    ) -> Result<Vec<UnfreedWindow>, JournalDeleteError> {
        // Without its lock file no process can have the journal open: an earlier deletion removed it.
        let _lock = match self.lock_file().try_exists().unwrap_or(true) {
            true => Some(self.lock()?),
            false if self.log().exists() => {
                let path = self.lock_file();
                return Err(JournalOpenError::NoLock { path }.into());
            }
            false => None,
        };
        // A deletion interrupted after the last file has only its notices to lenders left to do.
        let begun = list.as_ref().is_some_and(|list| list.has_begun(self.root()));
        if !begun && !self.files().iter().any(|file| file.exists()) {
            return Err(JournalDeleteError::NoJournal {
                path: self.root().to_path_buf(),
            });
        }
        if let Some(path) = self.foreign()? {
            return Err(JournalDeleteError::Foreign { path });
        }
        let places = std::slice::from_ref(self);
        if let Some(open) = self.not_closed(self.root(), windows)? {
            return Err(open.into());
        }
        let deleting = JournalDeletion::begin(list, self.root(), places, windows, lenders, key);
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| JournalDeleteError::Io { path, source }
        };
        let sync = |directory: &Path| {
            let synced = File::open(directory).and_then(|directory| directory.sync_all());
            synced.map_err(failed(directory))
        };
        let directory = match self.layout() {
            JournalLayout::Directory => self.root(),
            JournalLayout::Beside => self.parent(),
        };
        let files = self.files();
        if directory.exists() {
            for (number, file) in files.iter().enumerate() {
                remove(file).map_err(failed(file))?;
                // The journal is gone with its log. The lock file is removed only after everything else.
                if number == 0 || number + 2 == files.len() {
                    sync(directory)?;
                }
            }
            if self.layout() == JournalLayout::Directory {
                fs::remove_dir(self.root()).map_err(failed(self.root()))?;
            }
        }
        sync(self.parent())?;
        Ok(deleting.map_or_else(Vec::new, |deleting| deleting.done(PATIENCE)))
    }

    /// Why `what`, which is about to be deleted together with this journal, must be kept: the durable view
    /// counts on lenders, and `windows` is not all. A missing or damaged view keeps no journal, since it
    /// cannot be opened either.
    ///
    /// # Errors
    /// The view cannot be read at the moment; it may count on lenders.
    pub fn not_closed(
        &self,
        what: &Path,
        windows: WindowRelease,
    ) -> Result<Option<JournalNotClosed>, JournalOpenError> {
        let file = match open_view(self, false) {
            _ if windows == WindowRelease::All => return Ok(None),
            Ok(file) => file,
            Err(JournalOpenError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            Err(
                error @ (JournalOpenError::File { .. }
                | JournalOpenError::View {
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
        Ok((view.answers() > 0).then(|| JournalNotClosed {
            path: what.to_path_buf(),
            lenders: lenders.join(", "),
        }))
    }

    /// The journal's files, in the order of their removal.
    fn files(&self) -> [PathBuf; 7] {
        [
            self.log(),
            self.view(),
            self.key(),
            self.table(),
            self.settings(),
            self.lenders(),
            self.lock_file(),
        ]
    }

    /// The first file in the journal's directory that does not belong to the journal.
    fn foreign(&self) -> Result<Option<PathBuf>, JournalDeleteError> {
        if self.layout() == JournalLayout::Beside || !self.root().exists() {
            return Ok(None);
        }
        let failed = |source| JournalDeleteError::Io {
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
