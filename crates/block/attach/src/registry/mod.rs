//! Which volumes are attached here: a directory a name, with a lock that the supervisor holds and a record of
//! what it made.
//!
//! ```text
//! /run/netram-disk/NAME/lock          held as long as the supervisor lives
//!                      /record.json   what is attached, once it is
//!                      /log           what a supervisor in the background says
//! /dev/netram/NAME -> ../loop0        a name that stays the same
//! ```
//!
//! A record is true while the supervisor that it names lives and the lock is held; otherwise that supervisor
//! was killed, and the record is stale. Neither alone says so: whoever attaches anew holds the lock beside
//! the stale record until it is replaced, and numbers of processes are used again
//! ([`ProcessIdentity`](crate::ProcessIdentity)).

mod files;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

pub use files::{AttachRecord, RegistryError};
use files::{failed, lock_file, make_link, private_directory, write_record};

/// Names become file names.
pub const NAME_BYTES_MAX: usize = 64;

const LOCK: &str = "lock";
const RECORD: &str = "record.json";
const LOG: &str = "log";

/// Whoever looks whether the lock is held holds it for an instant himself.
const CLAIM_TRIES: u32 = 40;
const CLAIM_PAUSE: Duration = Duration::from_millis(5);

/// Where attachments are recorded.
#[derive(Clone, Debug)]
pub struct Registry {
    directory: PathBuf,
    links: PathBuf,
}

/// A record, and whether it is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AttachEntry {
    /// What was written when it was attached.
    #[serde(flatten)]
    pub record: AttachRecord,
    /// Whether the supervisor lives.
    pub alive: bool,
}

/// A name that this process has for itself until it ends.
#[derive(Debug)]
pub struct NameClaim {
    registry: Registry,
    name: String,
    /// What a supervisor that was killed has left.
    pub stale: Option<AttachRecord>,
    _lock: File,
}

/// Why a name or volume cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It is no name.
    #[error(
        "`{0}` cannot be the name of a device: give another one with --name, of up to {NAME_BYTES_MAX} letters, digits, \
         `.`, `_` and `-`"
    )]
    Name(String),
    /// The volume has a device.
    #[error("{volume} is attached already, as {device}; `netram disk detach {name}` takes it away", volume = .0.volume.display(), device = .0.device.display(), name = .0.name)]
    Attached(Box<AttachRecord>),
    /// Another volume has the name.
    #[error("the name {name} belongs to {volume}; give another one with --name", name = .0.name, volume = .0.volume.display())]
    Taken(Box<AttachRecord>),
    /// Somebody is attaching or detaching it.
    #[error("{0} is being attached or detached at this moment; try again when that is done")]
    Busy(String),
    /// The files fail.
    #[error("{0}")]
    Files(#[from] RegistryError),
}

/// Why it is not known what is meant.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// Several attachments fit.
    #[error(
        "{what} means two attached volumes, {first} and {second}: name one of them by this link",
        what = .what.display(), first = .first.display(), second = .second.display()
    )]
    Ambiguous {
        /// What was asked for.
        what: PathBuf,
        /// The link of one.
        first: PathBuf,
        /// The link of another.
        second: PathBuf,
    },
    /// The files fail.
    #[error("{0}")]
    Files(#[from] RegistryError),
}

/// The name for a volume when none is given: what its path ends with.
pub fn name_of(volume: &Path) -> String {
    let last = volume.file_name().unwrap_or(volume.as_os_str());
    last.to_string_lossy().into_owned()
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with(['.', '-'])
}

impl Registry {
    /// A registry in `directory`, whose links are made in `links`. Both are made when needed.
    pub fn new(directory: &Path, links: &Path) -> Registry {
        Registry {
            directory: directory.to_path_buf(),
            links: links.to_path_buf(),
        }
    }

    /// Takes `name` for the volume at the absolute path `volume`.
    pub fn claim(&self, name: &str, volume: &Path) -> Result<NameClaim, ClaimError> {
        if !is_name(name) {
            return Err(ClaimError::Name(name.to_owned()));
        }
        let same = |entry: &AttachEntry| entry.alive && entry.record.volume == volume;
        if let Some(entry) = self.entries()?.into_iter().find(same) {
            return Err(ClaimError::Attached(Box::new(entry.record)));
        }
        let directory = self.directory.join(name);
        private_directory(&directory)?;
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

    /// The lock of `name`, unless somebody has it.
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

    /// Everything that is recorded, by name.
    pub fn entries(&self) -> Result<Vec<AttachEntry>, RegistryError> {
        let directories = match fs::read_dir(&self.directory) {
            Ok(directories) => directories,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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

    /// The entry that `what` means: a name, a volume, a device or its link.
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
        // A true record stands before a stale one of the same device.
        Ok(alive.into_iter().chain(stale).next())
    }

    /// What supervisors that were killed have left of `volume`, under whatever names.
    pub fn stale(&self, volume: &Path) -> Result<Vec<AttachRecord>, RegistryError> {
        let stale = |entry: &AttachEntry| !entry.alive && entry.record.volume == volume;
        let entries = self.entries()?.into_iter();
        Ok(entries.filter(stale).map(|entry| entry.record).collect())
    }

    /// Where a supervisor in the background says what it says.
    pub fn log(&self, name: &str) -> PathBuf {
        self.directory.join(name).join(LOG)
    }

    /// Whether the supervisor that wrote `record` lives.
    pub fn is_alive(&self, record: &AttachRecord) -> bool {
        record.supervisor.is_alive() && self.is_locked(&record.name)
    }

    fn is_locked(&self, name: &str) -> bool {
        let lock = OpenOptions::new()
            .read(true)
            .open(self.directory.join(name).join(LOCK));
        lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Removes the stale record of `name`. `false` if somebody has the name: then its record stays.
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
        // A record is replaced as a whole; what cannot be read is of another version and says nothing.
        let text = fs::read(self.directory.join(name).join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn remove(&self, record: &AttachRecord) -> Result<(), RegistryError> {
        // A link that leads elsewhere by now is somebody else's.
        if fs::read_link(&record.link).is_ok_and(|target| target == record.device) {
            fs::remove_file(&record.link).map_err(failed(&record.link))?;
        }
        let path = self.directory.join(&record.name).join(RECORD);
        fs::remove_file(&path).map_err(failed(&path))
    }
}

impl NameClaim {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the link to the device will be.
    pub fn link(&self) -> PathBuf {
        self.registry.links.join(&self.name)
    }

    /// Makes the link, and writes down what is attached. After an error there is neither.
    pub(crate) fn announce(&mut self, record: &AttachRecord) -> Result<(), RegistryError> {
        // The link first: whoever reads the record finds it.
        let links = &self.registry.links;
        fs::create_dir_all(links).map_err(failed(links))?;
        make_link(record, &links.join(format!(".{}.new", self.name)))?;
        let directory = self.registry.directory.join(&self.name);
        if let Err(error) = write_record(record, &directory) {
            // The error that comes first says more than one of this.
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
