//! Registry of the volumes attached on this machine: for each name a directory with a lock, held by the
//! supervisor, and a record of the attachment.
//!
//! ```text
//! /run/netram-volume/NAME/lock         held while the supervisor lives
//!                        /record.json  the attachment, once it is complete
//!                        /log          log of a supervisor in the background
//!                        /server       socket for a server that the supervisor does not start
//! /dev/netram/NAME -> ../loop0          a stable name
//! ```
//!
//! A record is valid while the supervisor that it names lives and the lock is held. Otherwise that supervisor
//! was killed, and the record is stale. Neither condition alone suffices: a new attach holds the lock beside
//! the stale record until it is replaced, and process ids are reused
//! ([`ProcessIdentity`](crate::ProcessIdentity)).

mod files;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use files::{AttachRecord, RegistryError};
use files::{failed, lock_file, make_link, public_directory, write_record};

/// Maximum bytes of a name; names become file names.
pub const NAME_BYTES_MAX: usize = 64;

const LOCK: &str = "lock";
const RECORD: &str = "record.json";
const LOG: &str = "log";
const SERVER_SOCKET: &str = "server";

/// Number of attempts to take the lock: a process that checks the lock holds it for a moment.
const CLAIM_TRIES: u32 = 40;
const CLAIM_PAUSE: Duration = Duration::from_millis(5);

/// Registry of attachments.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: PathBuf,
    links: PathBuf,
}

/// A record, and whether it is valid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachEntry {
    /// The record, as written at the attach.
    #[serde(flatten)]
    pub record: AttachRecord,
    /// Whether the supervisor lives.
    pub alive: bool,
}

/// A name that this process has claimed until it ends.
#[derive(Debug)]
pub struct NameClaim {
    registry: Registry,
    name: String,
    /// Record of a supervisor that was killed.
    pub stale: Option<AttachRecord>,
    _lock: File,
}

/// Failure to claim a name for a volume.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// The name is invalid.
    #[error(
        "`{0}` is not a valid device name: give another one with --name, of up to {NAME_BYTES_MAX} letters, digits, \
         `.`, `_` and `-`"
    )]
    Name(String),
    /// The volume is attached already.
    #[error("{volume} is already attached as {device}; detach it with `netram volume detach {name}`", volume = .0.volume.display(), device = .0.device.display(), name = .0.name)]
    Attached(Box<AttachRecord>),
    /// Another volume has the name.
    #[error("the name {name} belongs to {volume}; give another one with --name", name = .0.name, volume = .0.volume.display())]
    Taken(Box<AttachRecord>),
    /// The name is being attached or detached by another process.
    #[error("{0} is being attached or detached by another process; try again when that is done")]
    Busy(String),
    /// The registry's files failed.
    #[error("{0}")]
    Files(#[from] RegistryError),
}

/// Failure to find an attachment.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Several attachments match.
    #[error(
        "{what} matches two attached volumes, {first} and {second}: give one of these links",
        what = .what.display(), first = .first.display(), second = .second.display()
    )]
    Ambiguous {
        /// The given name or path.
        what: PathBuf,
        /// Link of one attachment.
        first: PathBuf,
        /// Link of another attachment.
        second: PathBuf,
    },
    /// The registry's files failed.
    #[error("{0}")]
    Files(#[from] RegistryError),
}

/// Default name of a volume: the last part of its path.
pub fn name_of(volume: &Path) -> String {
    let last = volume.file_name().unwrap_or(volume.as_os_str());
    last.to_string_lossy().into_owned()
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with(['.', '-'])
}

impl Registry {
    /// Creates a registry in `directory` with links in `links`. Both directories are created when needed.
    pub fn new(directory: &Path, links: &Path) -> Registry {
        Registry {
            directory: directory.to_path_buf(),
            links: links.to_path_buf(),
        }
    }

    /// Claims `name` for the volume at the absolute path `volume`.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] if the name is invalid or taken, the volume is attached, or a file fails.
    pub fn claim(&self, name: &str, volume: &Path) -> Result<NameClaim, ClaimError> {
        if !is_name(name) {
            return Err(ClaimError::Name(name.to_owned()));
        }
        let same = |entry: &AttachEntry| entry.alive && entry.record.volume == volume;
        if let Some(entry) = self.entries()?.into_iter().find(same) {
            return Err(ClaimError::Attached(Box::new(entry.record)));
        }
        let directory = self.directory.join(name);
        public_directory(&self.directory)?;
        public_directory(&directory)?;
        if let Some(lock) = self.lock(name)? {
            return Ok(NameClaim {
                registry: self.clone(),
                name: name.to_owned(),
                stale: self.record(name),
                _lock: lock,
            });
        }
        let owner = self.record(name).filter(|record| self.is_alive(record));
        Err(match owner {
            Some(record) if record.volume == volume => ClaimError::Attached(Box::new(record)),
            Some(record) => ClaimError::Taken(Box::new(record)),
            None => ClaimError::Busy(name.to_owned()),
        })
    }

    /// Locks `name`, unless another process has it locked.
    fn lock(&self, name: &str) -> Result<Option<File>, RegistryError> {
        let path = self.directory.join(name).join(LOCK);
        let lock = lock_file(&path)?;
        for _ in 0..CLAIM_TRIES {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(lock)),
                Err(TryLockError::WouldBlock) => std::thread::sleep(CLAIM_PAUSE),
                Err(TryLockError::Error(source)) => return Err(RegistryError { path, source }),
            }
        }
        Ok(None)
    }

    /// All records, sorted by name.
    ///
    /// # Errors
    ///
    /// [`RegistryError`] if the registry's directory cannot be read.
    pub fn entries(&self) -> Result<Vec<AttachEntry>, RegistryError> {
        let directories = match fs::read_dir(&self.directory) {
            Ok(directories) => directories,
            // An ordinary user may not look into one of an earlier release. A volume's own lock tells enough.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
                ) =>
            {
                return Ok(Vec::new());
            }
            Err(source) => return Err(failed(&self.directory)(source)),
        };
        let mut entries = Vec::new();
        for directory in directories {
            let directory = directory.map_err(failed(&self.directory))?;
            let name = directory.file_name();
            if let Some(record) = name.to_str().and_then(|name| self.record(name)) {
                let alive = self.is_alive(&record);
                entries.push(AttachEntry { record, alive });
            }
        }
        entries.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        Ok(entries)
    }

    /// The attachment for a name, a volume, a device or its link.
    ///
    /// # Errors
    ///
    /// [`FindError`] if several attachments match, or the registry cannot be read.
    pub fn find(&self, what: &Path) -> Result<Option<AttachEntry>, FindError> {
        let absolute = fs::canonicalize(what).unwrap_or_else(|_| what.to_path_buf());
        let means = |entry: &AttachEntry| {
            let record = &entry.record;
            Path::new(&record.name) == what
                || record.link == what
                || record.volume == absolute
                || record.device == absolute
        };
        let (alive, stale): (Vec<AttachEntry>, Vec<AttachEntry>) = self
            .entries()?
            .into_iter()
            .filter(means)
            .partition(|entry| entry.alive);
        if let [first, second, ..] = alive.as_slice() {
            return Err(FindError::Ambiguous {
                what: what.to_path_buf(),
                first: first.record.link.clone(),
                second: second.record.link.clone(),
            });
        }
        // A valid record takes precedence over a stale one of the same device.
        Ok(alive.into_iter().chain(stale).next())
    }

    /// Stale records of `volume` under any name, left by killed supervisors.
    ///
    /// # Errors
    ///
    /// [`RegistryError`] if the registry's directory cannot be read.
    pub fn stale(&self, volume: &Path) -> Result<Vec<AttachRecord>, RegistryError> {
        let stale = |entry: &AttachEntry| !entry.alive && entry.record.volume == volume;
        let entries = self.entries()?.into_iter();
        Ok(entries.filter(stale).map(|entry| entry.record).collect())
    }

    /// Log file of a supervisor in the background.
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join(name).join(LOG)
    }

    /// Socket at which the supervisor of `name` waits for a server.
    pub fn server_socket(&self, name: &str) -> PathBuf {
        self.directory.join(name).join(SERVER_SOCKET)
    }

    /// Whether the supervisor that wrote `record` lives.
    pub fn is_alive(&self, record: &AttachRecord) -> bool {
        record.supervisor.is_alive() && self.is_locked(&record.name)
    }

    fn is_locked(&self, name: &str) -> bool {
        let lock = OpenOptions::new()
            .read(true)
            .open(self.directory.join(name).join(LOCK));
        match lock {
            Ok(lock) => matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)),
            // An ordinary user may see records, but not hold up a supervisor by its lock.
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// Removes the stale record of `name`. `false`: another process has the name, and its record stays.
    ///
    /// # Errors
    ///
    /// [`RegistryError`] if a file cannot be removed.
    pub fn forget(&self, name: &str) -> Result<bool, RegistryError> {
        let Some(_lock) = self.lock(name)? else {
            return Ok(false);
        };
        if let Some(record) = self.record(name) {
            self.remove(&record)?;
        }
        Ok(true)
    }

    fn record(&self, name: &str) -> Option<AttachRecord> {
        // Records are replaced as a whole; an unreadable one is of another version and is ignored.
        let text = fs::read(self.directory.join(name).join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn remove(&self, record: &AttachRecord) -> Result<(), RegistryError> {
        // A link that now leads elsewhere belongs to another program.
        if fs::read_link(&record.link).is_ok_and(|target| target == record.device) {
            fs::remove_file(&record.link).map_err(failed(&record.link))?;
        }
        let path = self.directory.join(&record.name).join(RECORD);
        fs::remove_file(&path).map_err(failed(&path))
    }
}

impl NameClaim {
    /// The claimed name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path of the link to the device.
    pub fn link(&self) -> PathBuf {
        self.registry.links.join(&self.name)
    }

    /// Path of the socket to which a server of another user connects.
    pub fn server_socket(&self) -> PathBuf {
        self.registry.server_socket(&self.name)
    }

    /// Creates the link and writes the record. After an error there is neither.
    pub(crate) fn announce(&mut self, record: &AttachRecord) -> Result<(), RegistryError> {
        // The link first, so that readers of the record find it.
        let links = &self.registry.links;
        public_directory(links)?;
        make_link(record, &links.join(format!(".{}.new", self.name)))?;
        let directory = self.registry.directory.join(&self.name);
        if let Err(error) = write_record(record, &directory) {
            // The first error says more than one of this call.
            let _ = fs::remove_file(&record.link);
            return Err(error);
        }
        self.stale = None;
        Ok(())
    }

    /// Removes record and link.
    pub(crate) fn withdraw(&mut self) -> Result<(), RegistryError> {
        match self.registry.record(&self.name) {
            Some(record) => self.registry.remove(&record),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
