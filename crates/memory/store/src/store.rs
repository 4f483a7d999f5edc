//! The files of a store: creating them, and opening them as recoverable memory.

use std::path::{Path, PathBuf};

use netram_journal::{
    Journal, JournalCreateError, JournalInspector, JournalLayout, JournalOpenError, JournalPaths,
    JournalRecovery,
};
use netram_proto::port::{IoError, RecordLog};
use netram_rvm::{RealStorage, Region, RelocateError, RelocatedSegment, Rvm, SegmentError, relocate};

use netram_journal::settings::SettingsError;

use crate::settings::StoreSettings;

/// Recoverable memory over a journal and real files.
pub type JournaledRvm = Rvm<Journal, RealStorage>;
/// A transaction of [`JournaledRvm`].
pub type JournaledTransaction = netram_rvm::Transaction<Journal, RealStorage>;

/// The location of a log and of all files that belong to it.
#[derive(Clone, Debug)]
pub struct Store {
    paths: JournalPaths,
}

/// An open store.
#[derive(Debug)]
pub struct OpenStore {
    /// The recoverable memory, with a running truncation thread.
    pub memory: JournaledRvm,
    /// Report of the journal's recovery; [`Rvm::recovery`] reports the records applied to segments.
    pub recovered: JournalRecovery,
}

/// Why a store could not be created or opened. Nothing was lost.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log could not be created.
    #[error("{0}")]
    Create(#[from] JournalCreateError),
    /// The settings are invalid.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The journal could not be opened or recovered.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// An operation on the segment table's file failed, or another process has it open.
    #[error("the segment table {path}: {cause}")]
    Table {
        /// The table's file.
        path: PathBuf,
        /// The system's error.
        cause: IoError,
    },
    /// The log has records, but its segment table is missing.
    #[error("the segment table {path} is missing, and the log has records that need it; restore the file")]
    TableMissing {
        /// The table's file.
        path: PathBuf,
    },
    /// The path is not UTF-8, which messages and the segment table require.
    #[error("{path:?} is not UTF-8; choose another name")]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// The log is a copy, or older than one of its segments. Nothing was opened.
    #[error("{0}")]
    Older(SegmentError),
    /// No segment was relocated.
    #[error("{0}")]
    Relocate(RelocateError),
    /// Recovery of the memory stopped. The log keeps every record.
    #[error("{0}")]
    Memory(#[from] netram_rvm::RvmOpenError),
    /// The truncation thread could not be started.
    #[error("the truncation thread could not be started: {0}")]
    Thread(std::io::Error),
}

impl Store {
    /// The store at `path`: a directory, or a log file with the other files beside it.
    pub fn at(path: &Path) -> Store {
        let found = JournalPaths::at(path);
        let paths = match path.is_dir() {
            true => found,
            // A path at which nothing exists is taken for a log file.
            false => JournalPaths::of(path, JournalLayout::Beside),
        };
        Store { paths }
    }

    /// Creates a store with a log of `log_bytes`, rounded up to whole pages.
    ///
    /// The log must not exist. Other files of a deleted log are replaced, except for the settings.
    ///
    /// # Errors
    ///
    /// [`StoreError::Create`] if the log exists or cannot be created; [`StoreError::Name`] or
    /// [`StoreError::Table`] for the table.
    pub fn create(path: &Path, layout: JournalLayout, log_bytes: u64) -> Result<Store, StoreError> {
        let paths = JournalPaths::of(path, layout);
        // Checked before anything is created: otherwise a log would exist that cannot have a table.
        text(&paths.table())?;
        paths.create(log_bytes)?;
        let store = Store { paths };
        if let Err(error) = store.create_table() {
            store.discard();
            return Err(error);
        }
        Ok(store)
    }

    /// Removes a store that was just created and never opened, so that it can be created again.
    pub fn discard(&self) {
        // A process that has opened it meanwhile keeps it.
        let Ok(_lock) = self.paths.lock() else { return };
        // The log is removed first: without it there is no store, even if other files remain.
        for path in [
            self.log(),
            self.segments(),
            self.paths.view(),
            self.paths.key(),
            self.paths.lock_file(),
        ] {
            let _ = std::fs::remove_file(path);
        }
        if self.paths.layout() == JournalLayout::Directory {
            // Settings written by a user stay, and the directory with them.
            let _ = std::fs::remove_dir(self.path());
        }
    }

    /// Whether the log exists.
    pub fn exists(&self) -> bool {
        self.log().is_file()
    }

    /// Path by which users refer to the store: its directory, or its log file.
    pub fn path(&self) -> &Path {
        self.paths.root()
    }

    /// The log file.
    pub fn log(&self) -> PathBuf {
        self.paths.log()
    }

    /// The segment table.
    pub fn segments(&self) -> PathBuf {
        self.paths.table()
    }

    /// Path of the settings file, which need not exist.
    pub fn settings_file(&self) -> PathBuf {
        self.paths.settings()
    }

    /// The settings from the file, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`StoreError::Settings`] if the file or a variable is invalid.
    pub fn settings(&self) -> Result<StoreSettings, StoreError> {
        let file = self.settings_file();
        // A file that cannot be looked up may exist; opening it reports the reason.
        let settings = match file.try_exists().unwrap_or(true) {
            true => StoreSettings::load(&file)?,
            false => StoreSettings::default(),
        };
        Ok(settings.with_environment(&|name| std::env::var(name).ok())?)
    }

    /// Recovers the log, opens the memory over it, and starts the truncation thread.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the settings are invalid, another process has the store, it is an older copy, or
    /// recovery stopped.
    pub fn open(&self, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
        self.open_after(settings, |_| ())
    }

    /// Opens like [`Store::open`], and passes the recovered log to a callback before its records are applied
    /// to the segments and trimmed.
    ///
    /// # Errors
    ///
    /// As [`Store::open`].
    pub fn open_after(
        &self,
        settings: &StoreSettings,
        look: impl FnOnce(&Journal),
    ) -> Result<OpenStore, StoreError> {
        let config = settings.journal_config()?;
        if !settings.adopt_segments {
            self.refuse_older()?;
        }
        let (journal, recovered) = Journal::open(self.paths.root(), config)?;
        look(&journal);
        let options = settings.options(journal.id());
        let storage = self.open_table(&journal)?;
        let memory = Rvm::open(journal, storage, options)?;
        memory.start_truncation().map_err(StoreError::Thread)?;
        Ok(OpenStore { memory, recovered })
    }

    /// Refuses a log that is a copy, or older than its segments, before the journal is opened, which would
    /// fence the original.
    fn refuse_older(&self) -> Result<(), StoreError> {
        match netram_rvm::refuse_older(&self.segments()) {
            Ok(()) => Ok(()),
            // If a process has the store open, the files read may be inconsistent. Opening reports that
            // process.
            Err(_) if self.paths.is_locked().unwrap_or(true) => Ok(()),
            Err(error) => Err(StoreError::Older(error)),
        }
    }

    /// Records new paths of moved segments: of the one at `from`, or of all inside that directory. No process
    /// may have the log open.
    ///
    /// # Errors
    ///
    /// [`StoreError::Relocate`]; no path was changed then.
    pub fn relocate(&self, from: &str, to: &str, adopt: bool) -> Result<Vec<RelocatedSegment>, StoreError> {
        let journal = JournalInspector::open(self.path())?.superblock().journal;
        let moved = relocate(&self.segments(), journal, from, to, adopt);
        moved.map_err(StoreError::Relocate)
    }

    fn open_table(&self, journal: &Journal) -> Result<RealStorage, StoreError> {
        let path = self.segments();
        // A file that cannot be looked up may exist; opening it reports the reason.
        if !path.try_exists().unwrap_or(true) {
            let state = journal.state();
            // A crash between the creation of log and table left an empty log.
            if state.head < state.tail {
                return Err(StoreError::TableMissing { path });
            }
            self.create_table()?;
        }
        let opened = RealStorage::open(text(&path)?);
        opened.map_err(|cause| StoreError::Table { path, cause })
    }

    fn create_table(&self) -> Result<(), StoreError> {
        let path = self.segments();
        match RealStorage::create(text(&path)?) {
            Ok(_) => Ok(()),
            Err(cause) => Err(StoreError::Table { path, cause }),
        }
    }
}

fn text(path: &Path) -> Result<&str, StoreError> {
    path.to_str().ok_or_else(|| StoreError::Name {
        path: path.to_path_buf(),
    })
}

// Compile-time check that these types can be sent and shared between threads.
const _: () = {
    const fn travels<T: Send + Sync>() {}
    travels::<JournaledRvm>();
    travels::<Region>();
};

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// The log was created and then its table refused, which left a log that could be neither opened nor
    /// created again.
    #[test]
    fn creating_a_store_with_a_non_utf8_path_leaves_no_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(OsStr::from_bytes(b"bank\xff"));
        for layout in [JournalLayout::Directory, JournalLayout::Beside] {
            let made = Store::create(&path, layout, 1 << 20);
            assert!(matches!(made, Err(StoreError::Name { .. })), "{made:?}");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
