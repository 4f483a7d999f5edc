//! The files of a journal directory.
//!
//! | file | what |
//! |---|---|
//! | `log` | the journal's log, of fixed size (docs/journal.md) |
//! | `view` | the durable view, two slots |
//! | `data.key` | the key that seals records before they leave this machine, mode 0600 |
//! | `lock` | locked by the one process that has the journal open; holds its number |

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use netram_proto::id::JournalId;
use netram_proto::journal::{LogFile, LogFileError, Slots, View};
use netram_proto::limit::{LOG_ALIGN, LOG_BYTES_MAX, LOG_BYTES_MIN, SLOT_BYTES};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

use crate::error::{CreateError, OpenError};
use crate::file::DiskFile;
use crate::seal::DataKey;

/// A journal directory's paths.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
}

/// The right to write the journal; given up when dropped, or with the process.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Directory {
    /// The journal directory at `root`.
    pub fn at(root: &Path) -> Directory {
        Directory {
            root: root.to_path_buf(),
        }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The log file.
    pub fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// The view file.
    pub fn view(&self) -> PathBuf {
        self.root.join("view")
    }

    /// The data key.
    pub fn key(&self) -> PathBuf {
        self.root.join("data.key")
    }

    /// The lock file.
    pub fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Makes a new journal with a log of `log_bytes` (rounded up to whole pages), all of it allocated on the disk, so
    /// that a full disk cannot stop a commit later.
    pub fn create(root: &Path, log_bytes: u64) -> Result<JournalId, CreateError> {
        let capacity = log_bytes.checked_next_multiple_of(LOG_ALIGN).unwrap_or(u64::MAX);
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity) {
            return Err(CreateError::Size(LogFileError::Size(log_bytes)));
        }
        let directory = Directory::at(root);
        let failed = |path: PathBuf| move |source: io::Error| CreateError::Io { path, source };
        match fs::create_dir(root) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(CreateError::Exists(root.to_path_buf()));
            }
            Err(error) => return Err(failed(root.to_path_buf())(error)),
        }
        let journal = JournalId(u128::from_le_bytes(random()));
        let made = directory.fill(journal, capacity);
        if made.is_err() {
            // A half-made journal is of no use to anybody, and holds nothing.
            let _ = fs::remove_dir_all(root);
        }
        made.map_err(failed(root.to_path_buf()))?;
        Ok(journal)
    }

    fn fill(&self, journal: JournalId, capacity: u64) -> io::Result<()> {
        DataKey::generate().save_new(&self.key())?;
        let log = allocate(&self.log(), LogFile::<DiskFile>::file_bytes(capacity))?;
        LogFile::create(DiskFile::new(log), journal, capacity).map_err(io::Error::other)?;
        let view = allocate(&self.view(), Slots::bytes(SLOT_BYTES))?;
        let first = View::first(journal).encode();
        Slots::create(&DiskFile::new(view), View::MAGIC, SLOT_BYTES, &first).map_err(io::Error::other)?;
        new_file(&self.lock_file())?;
        // The names must be as durable as what they name.
        File::open(&self.root)?.sync_all()?;
        if let Some(parent) = self.root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(())
    }

    /// Takes the right to write.
    pub fn lock(&self) -> Result<Lock, OpenError> {
        let path = self.lock_file();
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let mut file = opened.map_err(|source| OpenError::File { path, source })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            return Err(OpenError::InUse {
                path: self.root.clone(),
                pid: pid.trim().to_string(),
            });
        }
        // Only for the message above; a stale number does no harm.
        let _ = file
            .set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }

    /// Whether a process has the journal open. Shared, so that an opening at this moment is not in the way of others who
    /// only look; it may see itself refused for an instant.
    pub fn is_locked(&self) -> Result<bool, OpenError> {
        let file = self.open(self.lock_file(), false)?;
        Ok(flock(&file, FlockOperation::NonBlockingLockShared).is_err())
    }

    /// Opens one of the directory's files.
    pub fn open(&self, path: PathBuf, write: bool) -> Result<File, OpenError> {
        let opened = OpenOptions::new().read(true).write(write).open(&path);
        opened.map_err(|source| OpenError::File { path, source })
    }
}

/// A new file of full size, its blocks allocated.
fn allocate(path: &Path, bytes: u64) -> io::Result<File> {
    let file = new_file(path)?;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => (),
        // Some file systems cannot allocate ahead; writing zeros does the same, slower.
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(&file, bytes)?,
        Err(errno) => return Err(errno.into()),
    }
    file.sync_all()?;
    Ok(file)
}

fn write_zeros(mut file: &File, bytes: u64) -> io::Result<()> {
    io::copy(&mut io::repeat(0).take(bytes), &mut file).map(drop)
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Random bytes from the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("Linux gives random bytes once it has booted");
    bytes
}
