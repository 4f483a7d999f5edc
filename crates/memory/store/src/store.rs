//! The files of a home: creating them, opening them as recoverable memory.

use std::path::{Path, PathBuf};

use netram_journal::{
    Journal, JournalCreateError, JournalInspector, JournalLayout, JournalOpenError, JournalPaths,
    JournalRecovery,
};
use netram_proto::port::{IoError, RecordLog};
use netram_rvm::{RealStorage, Region, RelocateError, RelocatedSegment, Rvm, SegmentError, relocate};

use crate::settings::{StoreSettings, StoreSettingsError};

/// Recoverable memory over a journal and real files.
pub type JournaledRvm = Rvm<Journal, RealStorage>;
/// A transaction of [`Memory`].
pub type JournaledTransaction = netram_rvm::Transaction<Journal, RealStorage>;

/// Where a log is, with all that belongs to it.
#[derive(Clone, Debug)]
pub struct Store {
    paths: JournalPaths,
}

/// An open home.
#[derive(Debug)]
pub struct OpenStore {
    /// The recoverable memory. Its truncation thread runs.
    pub memory: JournaledRvm,
    /// What the journal's recovery found; what was applied to segments is [`Rvm::recovery`].
    pub recovered: JournalRecovery,
}

/// Why a home could not be created or opened. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The log could not be made.
    #[error("{0}")]
    Create(#[from] JournalCreateError),
    /// The settings are wrong.
    #[error("{0}")]
    Settings(#[from] StoreSettingsError),
    /// The journal could not be opened or recovered.
    #[error("{0}")]
    Journal(#[from] JournalOpenError),
    /// The segment table's file failed, or another process has it.
    #[error("the segment table {path}: {cause}")]
    Table {
        /// The table's file.
        path: PathBuf,
        /// What the system said.
        cause: IoError,
    },
    /// The log has transactions and its segment table is gone.
    #[error(
        "the segment table {path} is missing, and the log has records that name segments by it; restore the file"
    )]
    TableMissing {
        /// The table's file.
        path: PathBuf,
    },
    /// The path is no UTF-8, which messages and the segment table need.
    #[error("{path:?} is not UTF-8; choose another name")]
    Name {
        /// The path.
        path: PathBuf,
    },
    /// The log is a copy, or older than a segment. Nothing was opened.
    #[error("{0}")]
    Older(SegmentError),
    /// No segment was relocated.
    #[error("{0}")]
    Relocate(RelocateError),
    /// Recovery of the memory stopped. The log keeps every record.
    #[error("{0}")]
    Memory(#[from] netram_rvm::RvmOpenError),
    /// The truncation thread could not be started.
    #[error("starting the truncation thread: {0}")]
    Thread(std::io::Error),
}

impl Store {
    /// The home at `path`: a directory, or a log file with the rest beside it.
    pub fn at(path: &Path) -> Store {
        let found = JournalPaths::at(path);
        let place = match path.is_dir() {
            true => found,
            // Where nothing is, a face that is given a name means a file.
            false => JournalPaths::of(path, JournalLayout::Beside),
        };
        Store { paths: place }
    }

    /// Makes a new home with a log of `log_bytes` (rounded up to whole pages).
    ///
    /// Refuses when the log exists. Files beside a log that was deleted are replaced, the settings kept.
    pub fn create(path: &Path, layout: JournalLayout, log_bytes: u64) -> Result<Store, StoreError> {
        let place = JournalPaths::of(path, layout);
        // Before anything is made: there would be a log that cannot have a table.
        text(&place.table())?;
        place.create(log_bytes)?;
        let home = Store { paths: place };
        if let Err(error) = home.create_table() {
            home.discard();
            return Err(error);
        }
        Ok(home)
    }

    /// Removes a home that was just made and never opened, so that it can be made again.
    pub fn discard(&self) {
        // Whoever has it open by now keeps it.
        let Ok(_lock) = self.paths.lock() else { return };
        // The log first: without it there is no home, whatever else stays.
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
            // Settings that somebody has put there stay, and the directory with them.
            let _ = std::fs::remove_dir(self.path());
        }
    }

    /// Whether there is a log.
    pub fn exists(&self) -> bool {
        self.log().is_file()
    }

    /// What the home is called by: the directory, or the log file.
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

    /// The settings file, which need not exist.
    pub fn settings_file(&self) -> PathBuf {
        self.paths.settings()
    }

    /// The settings: the file's, and those of the environment over them.
    pub fn settings(&self) -> Result<StoreSettings, StoreError> {
        let file = self.settings_file();
        // What cannot be looked up may be there: whoever opens it says why it cannot (rule 17).
        let settings = match file.try_exists().unwrap_or(true) {
            true => StoreSettings::load(&file)?,
            false => StoreSettings::default(),
        };
        Ok(settings.with_environment(&|name| std::env::var(name).ok())?)
    }

    /// Recovers the log and opens the memory over it; starts the truncation thread.
    pub fn open(&self, settings: &StoreSettings) -> Result<OpenStore, StoreError> {
        self.open_after(settings, |_| ())
    }

    /// The same, and shows the recovered log before its records are applied to the segments and given up.
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

    /// Refuses a log that is a copy, or older than its segments, before the journal is opened: that would
    /// fence the original.
    fn refuse_older(&self) -> Result<(), StoreError> {
        match netram_rvm::refuse_older(&self.segments()) {
            Ok(()) => Ok(()),
            // What was read is of a moment of whoever has it open. The opening says who that is.
            Err(_) if self.paths.is_locked().unwrap_or(true) => Ok(()),
            Err(error) => Err(StoreError::Older(error)),
        }
    }

    /// Calls segments by where they are now: the one at `from`, or all beneath that directory. Nobody may
    /// have the log open.
    pub fn relocate(&self, from: &str, to: &str, adopt: bool) -> Result<Vec<RelocatedSegment>, StoreError> {
        let journal = JournalInspector::open(self.path())?.superblock().journal;
        let moved = relocate(&self.segments(), journal, from, to, adopt);
        moved.map_err(StoreError::Relocate)
    }

    fn open_table(&self, journal: &Journal) -> Result<RealStorage, StoreError> {
        let path = self.segments();
        // What cannot be looked up may be there: whoever opens it says why it cannot (rule 17).
        if !path.try_exists().unwrap_or(true) {
            let state = journal.state();
            // A crash between the making of log and table left an empty log.
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

// What a face hands from thread to thread.
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

    /// The log was made and its table refused: a log that no name could be given to, in the way of the next
    /// attempt.
    #[test]
    fn a_name_that_is_no_utf8_leaves_nothing_behind() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(OsStr::from_bytes(b"bank\xff"));
        for layout in [JournalLayout::Directory, JournalLayout::Beside] {
            let made = Store::create(&path, layout, 1 << 20);
            assert!(matches!(made, Err(StoreError::Name { .. })), "{made:?}");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
