//! The files of a journal: their names, their creation and their lock.
//!
//! | in a directory `X` | beside a log file `X` | contents |
//! |---|---|---|
//! | `X/log` | `X` | the journal's log, of fixed size (docs/design/journal.md) |
//! | `X/view` | `X.view` | the durable view, two slots |
//! | `X/data.key` | `X.key` | the key that seals records before they leave this machine, mode 0600 |
//! | `X/lenders` | `X.lenders` | addresses of lenders that `lenders = "auto"` found |
//! | `X/lock` | `X.lock` | lock file of the one process that has the journal open; holds its process id |
//!
//! The second layout is for programs that treat a log as a file: they create it, name it, and delete the
//! journal by deleting it (the original RVM's interface). The files that the log's user keeps beside it
//! ([`JournalPaths::table`], [`JournalPaths::settings`]) are named here too, so that a new log never meets an
//! old one's table.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use netram_process::files::{self, FileAccess, FileRefusal, PRIVATE, create_new};
use netram_proto::id::JournalId;
use netram_proto::journal::{LogFile, LogFileError, SlotPair, View};
use netram_proto::limit::{LOG_ALIGN, LOG_BYTES_MAX, LOG_BYTES_MIN, SLOT_BYTES};
use netram_proto::owner::is_owned;
use netram_proto::wire::ChainPoint as Chain;
use netram_transport::OwnerKey;
use rustix::fs::{CWD, FallocateFlags, FlockOperation, RenameFlags, fallocate, flock, renameat_with};
use rustix::io::Errno;

use crate::error::{JournalCreateError, JournalOpenError};
use crate::file::DiskFile;
use crate::fork::ForkMark;
use crate::random::random;
use crate::seal::DataKey;

/// Bytes of zeros written to a new log in one call.
const ZEROS_AT_ONCE: usize = 1024 * 1024;
/// Permissions of a new journal's directory: its catalog has the names of a whole directory.
const PRIVATE_DIRECTORY: u32 = 0o700;
/// Maximum bytes read of a lock file, which holds a process id.
const LOCK_BYTES_MAX: u64 = 64;
/// Maximum attempts to preallocate blocks when signals interrupt them. Writing the zeros allocates them, too.
const ALLOCATIONS_TRIED: usize = 8;

/// Layout of a journal's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalLayout {
    /// All files are in one directory.
    Directory,
    /// The log is a file, and the others are beside it.
    Beside,
}

/// The paths of a journal's files.
#[derive(Clone, Debug)]
pub struct JournalPaths {
    root: PathBuf,
    layout: JournalLayout,
}

/// The parts of a journal directory that is created from existing records.
pub struct JournalInit {
    /// The journal's id.
    pub journal: JournalId,
    /// Capacity of the log in bytes.
    pub log_bytes: u64,
    /// The key that seals the records.
    pub key: DataKey,
    /// The initial view.
    pub view: View,
    /// Where the log begins, with the chain value of the record there.
    pub start: Chain,
    /// How the log gets its blocks.
    pub blocks: LogBlocks,
}

/// How a new log gets its blocks on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBlocks {
    /// All are written at once: commits then never wait for the file system, and the disk has room.
    Ahead,
    /// As records come: for a log whose capacity is another machine's claim.
    AsNeeded,
}

/// The right to write one journal, given up on drop or when the process ends.
///
/// A child of `fork` has a copy of the descriptor. Dropping the copy releases nothing; dropping the lock in
/// the parent releases it although the copy exists.
#[derive(Debug)]
pub struct JournalLock {
    file: File,
    paths: JournalPaths,
    mark: ForkMark,
}

impl JournalLock {
    /// The paths of the locked journal.
    pub fn paths(&self) -> &JournalPaths {
        &self.paths
    }
}

impl Drop for JournalLock {
    fn drop(&mut self) {
        if !self.mark.is_child() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl JournalPaths {
    /// The paths of the journal at `root`, in the layout found there; if nothing is there, in the directory
    /// layout.
    pub fn at(root: &Path) -> JournalPaths {
        let directory = JournalPaths::of(root, JournalLayout::Directory);
        let beside = JournalPaths::of(root, JournalLayout::Beside);
        match !root.is_dir() && (root.exists() || beside.lock_file().exists()) {
            true => beside,
            false => directory,
        }
    }

    /// The paths of a journal at `root` with the given layout.
    pub fn of(root: &Path, layout: JournalLayout) -> JournalPaths {
        let root = root.to_path_buf();
        JournalPaths { root, layout }
    }

    /// The directory or the log file, by which users name the journal.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The layout of the files.
    pub fn layout(&self) -> JournalLayout {
        self.layout
    }

    /// The log file.
    pub fn log(&self) -> PathBuf {
        match self.layout {
            JournalLayout::Directory => self.root.join("log"),
            JournalLayout::Beside => self.root.clone(),
        }
    }

    /// The view file.
    pub fn view(&self) -> PathBuf {
        self.companion("view", "view")
    }

    /// The data key.
    pub fn key(&self) -> PathBuf {
        self.companion("data.key", "key")
    }

    /// The lock file.
    pub fn lock_file(&self) -> PathBuf {
        self.companion("lock", "lock")
    }

    /// Addresses of lenders that openings found, with `lenders = "auto"`.
    pub fn lenders(&self) -> PathBuf {
        self.companion("lenders", "lenders")
    }

    /// The segment table, which the log's user creates.
    pub fn table(&self) -> PathBuf {
        self.companion("segments", "segments")
    }

    /// The settings file, which the log's user writes.
    pub fn settings(&self) -> PathBuf {
        self.companion("netram.toml", "toml")
    }

    fn companion(&self, inside: &str, beside: &str) -> PathBuf {
        match self.layout {
            JournalLayout::Directory => self.root.join(inside),
            JournalLayout::Beside => {
                let mut name = OsString::from(self.root.as_os_str());
                name.push(".");
                name.push(beside);
                name.into()
            }
        }
    }

    /// Creates a journal with a log of `log_bytes`, rounded up to whole pages. All of it is written to the
    /// disk, so that a full disk cannot stop a commit later. The journal's id names the holder of its new
    /// data key as its owner.
    ///
    /// Existing files are never changed, with one exception: beside a missing log file, the files that
    /// belonged to it are replaced, since deleting the log deletes the journal.
    ///
    /// # Errors
    /// `Exists`, `Size` if `log_bytes` is out of bounds, or `Io`.
    pub fn create(&self, log_bytes: u64) -> Result<JournalId, JournalCreateError> {
        let key = DataKey::generate();
        let owned = JournalId(OwnerKey::derive(key.as_bytes()).owned());
        self.create_with(owned, key, log_bytes)
    }

    /// Creates a journal that has no owner.
    ///
    /// # Errors
    /// Those of [`JournalPaths::create`].
    pub(crate) fn create_unowned(&self, log_bytes: u64) -> Result<JournalId, JournalCreateError> {
        let drawn = u128::from_le_bytes(random());
        // One in 2^24 looks like an owner's.
        let free = if is_owned(drawn) { drawn >> 1 } else { drawn };
        self.create_with(JournalId(free), DataKey::generate(), log_bytes)
    }

    fn create_with(
        &self,
        journal: JournalId,
        key: DataKey,
        log_bytes: u64,
    ) -> Result<JournalId, JournalCreateError> {
        let capacity = log_bytes.checked_next_multiple_of(LOG_ALIGN).unwrap_or(u64::MAX);
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity) {
            return Err(JournalCreateError::Size(LogFileError::Size(log_bytes)));
        }
        let parts = JournalInit {
            journal,
            log_bytes: capacity,
            key,
            view: View::first(journal),
            start: Chain::default(),
            blocks: LogBlocks::Ahead,
        };
        match self.layout {
            JournalLayout::Directory => self.create_directory(&parts)?,
            JournalLayout::Beside => self.create_files(&parts)?,
        }
        Ok(journal)
    }

    /// Creates the directory of a journal from existing parts.
    pub(crate) fn create_of(&self, parts: &JournalInit) -> Result<(), JournalCreateError> {
        let sizes = LOG_BYTES_MIN..=LOG_BYTES_MAX;
        if !sizes.contains(&parts.log_bytes) || !parts.log_bytes.is_multiple_of(LOG_ALIGN) {
            return Err(JournalCreateError::Size(LogFileError::Size(parts.log_bytes)));
        }
        self.create_directory(parts)
    }

    /// An existing directory must hold no journal: it may be empty, or hold settings or the remains of an
    /// interrupted creation.
    fn create_directory(&self, parts: &JournalInit) -> Result<(), JournalCreateError> {
        let new = match DirBuilder::new().mode(PRIVATE_DIRECTORY).create(&self.root) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(self.failed(error)),
        };
        if !new && !self.is_free() {
            return Err(JournalCreateError::Exists(self.root.clone()));
        }
        let made = self.create_files(parts);
        if made.is_err() && new {
            // A half-created journal holds no records.
            let _ = fs::remove_dir_all(&self.root);
        }
        made?;
        File::open(&self.root)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| self.failed(error))
    }

    /// Whether the directory holds only settings and files that a creation makes before the log. A segment
    /// table is made after the log, so its presence means that a log was lost, which must not go unnoticed.
    fn is_free(&self) -> bool {
        let made = [
            self.lock_file(),
            self.view(),
            self.key(),
            self.companion("log.new", "new"),
        ];
        let ours = |path: PathBuf| made.contains(&path) || path == self.settings();
        let entries = fs::read_dir(&self.root).ok();
        entries.is_some_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| ours(entry.path()))))
    }

    /// The complete log gets its name last. Until then there is no journal, and the next attempt starts
    /// again.
    fn create_files(&self, parts: &JournalInit) -> Result<(), JournalCreateError> {
        files::open_or_create(&self.lock_file(), PRIVATE).map_err(|error| self.failed(error.into()))?;
        let _lock = self.lock().map_err(|error| match error {
            JournalOpenError::InUse { path, .. } => JournalCreateError::Exists(path),
            other => self.failed(io::Error::other(other)),
        })?;
        if self.log().symlink_metadata().is_ok() {
            return Err(JournalCreateError::Exists(self.root.clone()));
        }
        let unfinished = self.companion("log.new", "new");
        let made = [
            self.view(),
            self.key(),
            self.table(),
            self.lenders(),
            unfinished.clone(),
        ]
        .iter()
        .try_for_each(|stale| remove(stale))
        .and_then(|()| self.fill(&unfinished, parts))
        .and_then(|()| {
            // Must not replace a log that another program has created in the meantime.
            Ok(renameat_with(
                CWD,
                &unfinished,
                CWD,
                self.log(),
                RenameFlags::NOREPLACE,
            )?)
        })
        .and_then(|()| self.sync_parent());
        if made.is_err() {
            let _ = remove(&unfinished);
        }
        made.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => JournalCreateError::Exists(self.root.clone()),
            _ => self.failed(error),
        })
    }

    fn fill(&self, log: &Path, parts: &JournalInit) -> io::Result<()> {
        parts.key.save_new(&self.key())?;
        let view = allocate(&self.view(), SlotPair::bytes(SLOT_BYTES))?;
        let first = parts.view.adopted().encode();
        SlotPair::create(&DiskFile::new(view), View::MAGIC, SLOT_BYTES, &first).map_err(io::Error::other)?;
        let bytes = LogFile::<DiskFile>::file_bytes(parts.log_bytes);
        let log = match parts.blocks {
            LogBlocks::Ahead => allocate(log, bytes)?,
            LogBlocks::AsNeeded => {
                let log = create_new(log, PRIVATE)?;
                log.set_len(bytes)?;
                log
            }
        };
        LogFile::create_at(DiskFile::new(log), parts.journal, parts.log_bytes, parts.start)
            .map_err(io::Error::other)?;
        Ok(())
    }

    fn failed(&self, source: io::Error) -> JournalCreateError {
        let path = self.root.clone();
        JournalCreateError::Io { path, source }
    }

    /// Makes the new names durable.
    fn sync_parent(&self) -> io::Result<()> {
        File::open(self.parent())?.sync_all()
    }

    /// The directory that contains the journal's directory or its log.
    pub(crate) fn parent(&self) -> &Path {
        let parent = self.root.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    /// Takes the lock that gives the right to write.
    ///
    /// # Errors
    /// `InUse` if another process holds it, `NoLock` if the lock file was removed, `File` otherwise.
    pub fn lock(&self) -> Result<JournalLock, JournalOpenError> {
        let path = self.lock_file();
        // Its kind and owner are known before it is emptied below.
        let opened = files::open(&path, FileAccess::Write);
        let mut file = opened.map_err(|refusal| match refusal {
            // A new lock file would admit a second writer beside one that holds the removed file.
            FileRefusal::System(error) if error.kind() == io::ErrorKind::NotFound && self.log().exists() => {
                JournalOpenError::NoLock { path }
            }
            refusal => JournalOpenError::File {
                path,
                source: refusal.into(),
            },
        })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(JournalOpenError::InUse {
                path: self.root.clone(),
                pid: pid_in(&file),
            });
        }
        // Only for the message above; an outdated number is harmless.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(JournalLock {
            file,
            paths: self.clone(),
            mark: ForkMark::here(),
        })
    }

    /// Whether a process has the journal open. The check takes a shared lock, so that it does not disturb
    /// other checks; an opening at the same moment may be refused.
    ///
    /// # Errors
    /// The lock file cannot be opened.
    pub fn is_locked(&self) -> Result<bool, JournalOpenError> {
        let file = self.open(self.lock_file(), false)?;
        Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// The process id that the lock's holder has written into the lock file.
    pub(crate) fn holder(&self) -> String {
        let file = files::open(&self.lock_file(), FileAccess::Read);
        file.map_or_else(|_| String::new(), |file| pid_in(&file))
    }

    /// Opens one of the journal's files.
    ///
    /// # Errors
    /// `File`, with the path and the system's error.
    pub fn open(&self, path: PathBuf, write: bool) -> Result<File, JournalOpenError> {
        let access = if write {
            FileAccess::Write
        } else {
            FileAccess::Read
        };
        files::open(&path, access).map_err(|refusal| JournalOpenError::File {
            path,
            source: refusal.into(),
        })
    }
}

/// The process id in a lock file.
fn pid_in(file: &File) -> String {
    let mut pid = String::new();
    let _ = file.take(LOCK_BYTES_MAX).read_to_string(&mut pid);
    pid.trim().to_owned()
}

/// Removes a file; a missing file is not an error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Creates a file of full size with its blocks written.
fn allocate(path: &Path, bytes: u64) -> io::Result<File> {
    let file = create_new(path, PRIVATE)?;
    zero_up_to(&file, bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Extends the file to `bytes` with zeros and writes all new blocks. Not durable before a sync.
///
/// Blocks that are only allocated count as unwritten, and the sync after their first write also updates the
/// file system's metadata. On ext4 with commits of 2 KiB this added a third to every sync of a log's first
/// lap.
pub(crate) fn zero_up_to(file: &File, bytes: u64) -> io::Result<()> {
    let there = file.metadata()?.len();
    // Preallocating keeps the blocks together, and a full disk is reported before anything is written.
    match allocate_ahead(file, bytes) {
        // Some file systems cannot preallocate, or not while signals arrive.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::INTR) => (),
        Err(errno) => return Err(errno.into()),
    }
    let zeros = vec![0; ZEROS_AT_ONCE];
    let mut at = there;
    while at < bytes {
        let length = (bytes - at).min(ZEROS_AT_ONCE as u64);
        file.write_all_at(&zeros[..length as usize], at)?;
        at += length;
    }
    Ok(())
}

/// Preallocates blocks. A signal may interrupt it, and a file system may then release its progress, so
/// unlimited retries could go on for ever under frequent signals.
fn allocate_ahead(file: &File, bytes: u64) -> Result<(), Errno> {
    let mut tried = Err(Errno::INTR);
    for _ in 0..ALLOCATIONS_TRIED {
        tried = fallocate(file, FallocateFlags::empty(), 0, bytes);
        if tried != Err(Errno::INTR) {
            break;
        }
    }
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 * 1024;

    #[test]
    fn a_log_file_is_a_journal_with_its_files_beside_it() {
        let directory = tempfile::tempdir().unwrap();
        let place = JournalPaths::of(&directory.path().join("bank.log"), JournalLayout::Beside);
        place.create(BYTES).unwrap();
        for file in [place.log(), place.view(), place.key(), place.lock_file()] {
            assert!(file.is_file(), "{}", file.display());
            assert!(file.to_str().unwrap().contains("bank.log"));
        }
        assert_eq!(JournalPaths::at(place.root()).layout(), JournalLayout::Beside);
        assert!(matches!(place.create(BYTES), Err(JournalCreateError::Exists(_))));
    }

    #[test]
    fn a_deleted_log_takes_its_companions_along_but_not_the_settings() {
        let directory = tempfile::tempdir().unwrap();
        let place = JournalPaths::of(&directory.path().join("bank.log"), JournalLayout::Beside);
        let first = place.create(BYTES).unwrap();
        let key = fs::read(place.key()).unwrap();
        fs::write(place.table(), b"of the log that is gone").unwrap();
        fs::write(place.settings(), b"members = 1").unwrap();
        fs::remove_file(place.log()).unwrap();

        let second = place.create(BYTES).unwrap();
        assert_ne!(first, second);
        assert_ne!(fs::read(place.key()).unwrap(), key);
        assert!(!place.table().exists());
        assert!(place.settings().exists());
    }

    #[test]
    fn a_log_in_use_is_not_replaced_even_if_its_name_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let place = JournalPaths::of(&directory.path().join("bank.log"), JournalLayout::Beside);
        place.create(BYTES).unwrap();
        let _lock = place.lock().unwrap();
        fs::remove_file(place.log()).unwrap();
        assert!(matches!(place.create(BYTES), Err(JournalCreateError::Exists(_))));
        assert!(place.view().exists());
    }

    #[test]
    fn a_missing_path_means_the_directory_layout() {
        let directory = tempfile::tempdir().unwrap();
        let place = JournalPaths::at(&directory.path().join("bank"));
        assert_eq!(place.layout(), JournalLayout::Directory);
        place.create(BYTES).unwrap();
        assert!(directory.path().join("bank/log").is_file());
    }
}
