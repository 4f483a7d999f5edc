//! Which volumes are attached here: a folder a name, with a lock that the supervisor holds and a record of what it made.
//!
//! ```text
//! /run/netram-disk/NAME/lock          held as long as the supervisor lives
//!                      /record.json   what is attached, once it is
//!                      /log           what a supervisor in the background says
//! /dev/netram/NAME -> ../loop0        a name that stays the same
//! ```
//!
//! A record is true while the supervisor that it names lives and the lock is held; otherwise that supervisor was killed,
//! and the record is stale. Neither alone says so: whoever attaches anew holds the lock beside the stale record until it
//! is replaced, and numbers of processes are used again ([`Process`]).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::process::Process;

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
    folder: PathBuf,
    links: PathBuf,
}

/// What is attached under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The name.
    pub name: String,
    /// The volume, as an absolute path.
    pub volume: PathBuf,
    /// The block device.
    pub device: PathBuf,
    /// A link to it that has the same path each time.
    pub link: PathBuf,
    /// How the kernel reaches the volume.
    pub way: String,
    /// Bytes of the device's logical block.
    pub block_bytes: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The served file, as the supervisor has it open; empty when there is none.
    #[serde(default)]
    pub file: PathBuf,
    /// Who looks after it.
    pub supervisor: Process,
    /// Who has the volume open.
    pub server: Process,
    /// How many servers died before that one.
    #[serde(default)]
    pub restarts: u32,
}

/// A record, and whether it is true.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// What was written when it was attached.
    #[serde(flatten)]
    pub record: Record,
    /// Whether the supervisor lives.
    pub alive: bool,
}

/// A name that this process has for itself until it ends.
#[derive(Debug)]
pub struct Claim {
    registry: Registry,
    name: String,
    /// What a supervisor that was killed has left.
    pub stale: Option<Record>,
    _lock: File,
}

/// The registry's files fail.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}")]
pub struct RegistryError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
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
    Attached(Box<Record>),
    /// Another volume has the name.
    #[error("the name {name} belongs to {volume}; give another one with --name", name = .0.name, volume = .0.volume.display())]
    Taken(Box<Record>),
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
    /// A registry in `folder`, whose links are made in `links`. Both are made when needed.
    pub fn new(folder: &Path, links: &Path) -> Registry {
        Registry {
            folder: folder.to_path_buf(),
            links: links.to_path_buf(),
        }
    }

    /// Takes `name` for the volume at the absolute path `volume`.
    pub fn claim(&self, name: &str, volume: &Path) -> Result<Claim, ClaimError> {
        if !is_name(name) {
            return Err(ClaimError::Name(name.to_owned()));
        }
        let same = |entry: &Entry| entry.alive && entry.record.volume == volume;
        if let Some(entry) = self.entries()?.into_iter().find(same) {
            return Err(ClaimError::Attached(Box::new(entry.record)));
        }
        let folder = self.folder.join(name);
        private_folder(&folder)?;
        if let Some(lock) = self.lock(name)? {
            return Ok(Claim {
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
        let path = self.folder.join(name).join(LOCK);
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
    pub fn entries(&self) -> Result<Vec<Entry>, RegistryError> {
        let folders = match fs::read_dir(&self.folder) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(failed(&self.folder)(source)),
        };
        let mut entries = Vec::new();
        for folder in folders {
            let folder = folder.map_err(failed(&self.folder))?;
            let name = folder.file_name();
            if let Some(record) = name.to_str().and_then(|name| self.record(name)) {
                let alive = self.is_alive(&record);
                entries.push(Entry { record, alive });
            }
        }
        entries.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        Ok(entries)
    }

    /// The entry that `what` means: a name, a volume, a device or its link.
    pub fn find(&self, what: &Path) -> Result<Option<Entry>, FindError> {
        let absolute = fs::canonicalize(what).unwrap_or_else(|_| what.to_path_buf());
        let means = |entry: &Entry| {
            let record = &entry.record;
            Path::new(&record.name) == what
                || record.link == what
                || record.volume == absolute
                || record.device == absolute
        };
        let (alive, stale): (Vec<Entry>, Vec<Entry>) = self
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

    /// Where a supervisor in the background says what it says.
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join(name).join(LOG)
    }

    /// Whether the supervisor that wrote `record` lives.
    pub fn is_alive(&self, record: &Record) -> bool {
        record.supervisor.is_alive() && self.is_held(&record.name)
    }

    fn is_held(&self, name: &str) -> bool {
        let lock = OpenOptions::new()
            .read(true)
            .open(self.folder.join(name).join(LOCK));
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

    fn record(&self, name: &str) -> Option<Record> {
        // A record is replaced as a whole; what cannot be read is of another version and says nothing.
        let text = fs::read(self.folder.join(name).join(RECORD)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn remove(&self, record: &Record) -> Result<(), RegistryError> {
        // A link that leads elsewhere by now is somebody else's.
        if fs::read_link(&record.link).is_ok_and(|target| target == record.device) {
            fs::remove_file(&record.link).map_err(failed(&record.link))?;
        }
        let path = self.folder.join(&record.name).join(RECORD);
        fs::remove_file(&path).map_err(failed(&path))
    }
}

impl Claim {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the link to the device will be.
    pub fn link(&self) -> PathBuf {
        self.registry.links.join(&self.name)
    }

    /// Makes the link, and writes down what is attached. After an error there is neither.
    pub(crate) fn announce(&mut self, record: &Record) -> Result<(), RegistryError> {
        // The link first: whoever reads the record finds it.
        let links = &self.registry.links;
        fs::create_dir_all(links).map_err(failed(links))?;
        make_link(record, &links.join(format!(".{}.new", self.name)))?;
        let folder = self.registry.folder.join(&self.name);
        if let Err(error) = write_record(record, &folder) {
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

/// Makes the record's link, by way of `fresh`: at no moment does it lead nowhere. Takes the place of a link only.
fn make_link(record: &Record, fresh: &Path) -> Result<(), RegistryError> {
    let link = &record.link;
    if link.symlink_metadata().is_ok_and(|there| !there.is_symlink()) {
        let taken = io::Error::new(
            io::ErrorKind::AlreadyExists,
            "the device's link belongs here, and something else is; remove that, or give another --name",
        );
        return Err(failed(link)(taken));
    }
    match fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(fresh)(error)),
        _ => {}
    }
    symlink(&record.device, fresh).map_err(failed(fresh))?;
    fs::rename(fresh, link).map_err(failed(link))
}

/// A record is replaced as a whole.
fn write_record(record: &Record, folder: &Path) -> Result<(), RegistryError> {
    let (path, fresh) = (folder.join(RECORD), folder.join("record.new"));
    let text = serde_json::to_vec_pretty(record).map_err(|error| failed(&path)(error.into()))?;
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)
        .and_then(|mut file| file.write_all(&text));
    written.map_err(failed(&fresh))?;
    fs::rename(&fresh, &path).map_err(failed(&path))
}

fn private_folder(path: &Path) -> Result<(), RegistryError> {
    let mut folder = fs::DirBuilder::new();
    folder.recursive(true).mode(0o700);
    folder.create(path).map_err(failed(path))
}

fn lock_file(path: &Path) -> Result<File, RegistryError> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600);
    options.open(path).map_err(failed(path))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RegistryError + use<> {
    let path = path.to_path_buf();
    move |source| RegistryError {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> (tempfile::TempDir, Registry) {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::new(&folder.path().join("run"), &folder.path().join("dev"));
        (folder, registry)
    }

    fn record(registry: &Registry, name: &str, volume: &str) -> Record {
        Record {
            name: name.into(),
            volume: volume.into(),
            device: "/dev/loop77".into(),
            link: registry.links.join(name),
            way: "fuse+loop".into(),
            block_bytes: 4096,
            read_only: false,
            file: "/proc/1/fd/1000".into(),
            supervisor: Process::of(std::process::id()).unwrap(),
            server: Process::of(std::process::id()).unwrap(),
            restarts: 0,
        }
    }

    #[test]
    fn a_volume_and_a_name_are_had_once_and_a_dead_owners_record_is_stale() {
        let (_folder, registry) = registry();
        assert_eq!(registry.entries().unwrap(), []);
        let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
        let busy = registry.claim("db", Path::new("/v/db"));
        assert!(matches!(busy, Err(ClaimError::Busy(_))));
        let made = record(&registry, "db", "/v/db");
        claim.announce(&made).unwrap();
        assert_eq!(fs::read_link(claim.link()).unwrap(), made.device);
        for name in ["db", "other"] {
            let twice = registry.claim(name, Path::new("/v/db"));
            assert!(matches!(twice, Err(ClaimError::Attached(_))), "{name}");
        }
        let taken = registry.claim("db", Path::new("/w/db"));
        assert!(matches!(taken, Err(ClaimError::Taken(_))));
        assert!(!registry.forget("db").unwrap());
        for what in ["db", "/v/db", "/dev/loop77"] {
            assert!(registry.find(Path::new(what)).unwrap().unwrap().alive, "{what}");
        }
        // The owner is killed.
        drop(claim);
        assert!(!registry.find(Path::new("db")).unwrap().unwrap().alive);
        let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
        assert_eq!(claim.stale, Some(made.clone()));
        claim.announce(&made).unwrap();
        claim.withdraw().unwrap();
        assert_eq!(registry.entries().unwrap(), []);
        assert!(claim.link().symlink_metadata().is_err());
    }

    #[test]
    fn a_stale_record_is_forgotten_and_a_link_that_leads_elsewhere_stays() {
        let (_folder, registry) = registry();
        let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
        claim.announce(&record(&registry, "db", "/v/db")).unwrap();
        let link = claim.link();
        drop(claim);
        fs::remove_file(&link).unwrap();
        symlink("/dev/loop78", &link).unwrap();
        assert!(registry.forget("db").unwrap());
        assert_eq!(registry.entries().unwrap(), []);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/loop78"));
    }

    #[test]
    fn a_dead_supervisors_record_stays_stale_while_its_name_is_claimed_anew() {
        // It looked alive then, and `detach` signalled whoever had its number by now.
        let (_folder, registry) = registry();
        let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
        let mut dead = record(&registry, "db", "/v/db");
        // A process that had our number before us.
        dead.supervisor.start -= 1;
        claim.announce(&dead).unwrap();
        drop(claim);
        let claim = registry.claim("db", Path::new("/v/db")).unwrap();
        assert_eq!(claim.stale, Some(dead));
        assert!(!registry.find(Path::new("db")).unwrap().unwrap().alive);
        for volume in ["/v/db", "/w/db"] {
            let busy = registry.claim("db", Path::new(volume));
            assert!(matches!(busy, Err(ClaimError::Busy(_))), "{volume}");
        }
        assert!(!registry.forget("db").unwrap());
        drop(claim);
        assert!(registry.forget("db").unwrap());
        assert_eq!(registry.entries().unwrap(), []);
    }

    #[test]
    fn what_cannot_be_announced_leaves_neither_record_nor_link() {
        let (_folder, registry) = registry();
        let mut claim = registry.claim("db", Path::new("/v/db")).unwrap();
        let made = record(&registry, "db", "/v/db");
        let link = claim.link();
        fs::create_dir_all(&registry.links).unwrap();
        fs::write(&link, "somebody's").unwrap();
        let refused = claim.announce(&made).unwrap_err().to_string();
        assert!(refused.contains(link.to_str().unwrap()), "{refused}");
        assert_eq!(fs::read_to_string(&link).unwrap(), "somebody's");
        assert_eq!(registry.entries().unwrap(), []);
        fs::remove_file(&link).unwrap();
        let obstacle = registry.folder.join("db/record.json");
        fs::create_dir(&obstacle).unwrap();
        claim.announce(&made).unwrap_err();
        assert!(link.symlink_metadata().is_err(), "the link stays");
        fs::remove_dir(&obstacle).unwrap();
        claim.announce(&made).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), made.device);
        assert_eq!(fs::read_dir(&registry.links).unwrap().count(), 1);
    }

    #[test]
    fn what_means_two_attachments_is_refused() {
        let (folder, registry) = registry();
        let path = folder.path().join("db");
        let mut claims = Vec::new();
        for (name, volume) in [("db", Path::new("/v/db")), ("other", &path)] {
            let mut claim = registry.claim(name, volume).unwrap();
            let mut made = record(&registry, name, "");
            made.volume = volume.to_path_buf();
            made.device = Path::new("/dev").join(name);
            claim.announce(&made).unwrap();
            claims.push(claim);
        }
        let name = registry.find(Path::new("db")).unwrap().unwrap();
        assert_eq!(name.record.volume, Path::new("/v/db"));
        assert_eq!(registry.find(&path).unwrap().unwrap().record.name, "other");
        // Both on one device: the one that goes, and the one that has got its device.
        let mut made = record(&registry, "other", "/v/other");
        made.device = "/dev/db".into();
        claims[1].announce(&made).unwrap();
        let both = registry.find(Path::new("/dev/db"));
        assert!(matches!(both, Err(FindError::Ambiguous { .. })), "{both:?}");
        let link = registry.find(&made.link).unwrap().unwrap();
        assert_eq!(link.record, made);
    }

    #[test]
    fn what_cannot_be_a_file_name_is_no_name() {
        let (_folder, registry) = registry();
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "-a", "a/b", "a b", "ä", long.as_str()] {
            let refused = registry.claim(name, Path::new("/v"));
            assert!(matches!(refused, Err(ClaimError::Name(_))), "{name}");
        }
        assert_eq!(name_of(Path::new("/var/lib/db/")), "db");
    }
}
