//! Files of a volume: their names, and how they are created and inspected.
//!
//! | file | contents |
//! |---|---|
//! | `super` | superblock in two slots; written last, removed first |
//! | `image` | the blocks |
//! | `sums` | their checksums |
//! | `journal` | the journal's directory; its lock is also the volume's |
//! | `dirty` | dirty map: blocks that a data lender must be sent because the journal no longer has their records; only with a data lender |
//! | `replica` | only in a data lender's copy: its header |
//! | `recovery` | the key of the journal's records, wrapped under the volume's recovery key; only with one |
//! | `unheard` | only in a restored volume that has never served: the data lender that it must reach first |
//! | `netram.toml` | lenders and settings; optional |
//! | `control` | socket of the process that has the volume open |

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_block::{DiskFiles, VolumeId, VolumeSuperblock, create};
use netram_journal::settings::{JournalSettings, SettingsError};
use netram_journal::{Journal, JournalFollower, JournalInit, JournalInspector};
use netram_process::files::{self, FileRefusal, PRIVATE};
use netram_proto::id::JournalId;
use netram_transport::NetAddress;
use ring::rand::{SecureRandom, SystemRandom};
use rustix::fs::{Mode, OFlags};

use crate::error::{VolumeCreateError, VolumeInspectError, VolumeOpenError};
use crate::file::VolumeFile;

/// Default bytes of a new volume's journal: room for the stages that may wait for the image, and as much for
/// writes in the meantime.
pub const JOURNAL_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Name of the control socket.
pub(crate) const CONTROL: &str = "control";

/// Maximum bytes of the file that names the data lender.
const UNANNOUNCED_BYTES_MAX: u64 = 1024;
/// Separates the volume's name from a random number in the temporary name of a directory being created.
const UNFINISHED: &str = ".new-";

/// Paths of a volume's files.
#[derive(Clone, Debug)]
pub struct VolumePaths {
    root: PathBuf,
}

/// Description of a volume that is not opened.
#[derive(Clone, Debug)]
pub struct VolumeInspection {
    /// Contents of the superblock.
    pub superblock: VolumeSuperblock,
    /// Bytes of disk space that the image uses.
    pub image_taken_bytes: u64,
    /// Whether a process has the volume open.
    pub in_use: bool,
    /// Whether the journal has writes that the image may lack, because the volume was not closed.
    pub unapplied: bool,
    /// Capacity of the journal in bytes.
    pub journal_bytes: u64,
    /// Addresses of the lenders that may hold the newest writes; recovery will ask them.
    pub members: Vec<String>,
}

impl VolumePaths {
    /// Paths of the volume at `root`.
    pub fn at(root: &Path) -> VolumePaths {
        let root = root.to_path_buf();
        VolumePaths { root }
    }

    /// The volume's directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The journal's directory.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// The settings file, which is optional.
    pub fn settings_file(&self) -> PathBuf {
        self.root.join("netram.toml")
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.root.join("image")
    }

    pub(crate) fn sums(&self) -> PathBuf {
        self.root.join("sums")
    }

    pub(crate) fn superblock(&self) -> PathBuf {
        self.root.join("super")
    }

    /// The open directory, and the name of the control socket in it.
    pub(crate) fn control(&self) -> io::Result<(OwnedFd, &'static str)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&self.root, flags, Mode::empty())?;
        Ok((directory, CONTROL))
    }

    pub(crate) fn dirty(&self) -> PathBuf {
        self.root.join("dirty")
    }

    /// The key of the journal's records.
    pub(crate) fn data_key(&self) -> PathBuf {
        self.journal().join("data.key")
    }

    /// The key of the journal's records, wrapped under the volume's recovery key.
    pub(crate) fn recovery(&self) -> PathBuf {
        self.root.join("recovery")
    }

    /// The wrapped key, if the volume has a recovery key.
    pub(crate) fn wrapped_key(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.recovery()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    pub(crate) fn unannounced(&self) -> PathBuf {
        self.root.join("unheard")
    }

    /// Records that the volume must reach `data_lender` before it serves. Durable with the directory.
    pub(crate) fn mark_unannounced(&self, data_lender: &NetAddress) -> io::Result<()> {
        let mut file = files::create_new(&self.unannounced(), PRIVATE)?;
        writeln!(file, "{data_lender}")?;
        file.sync_all()
    }

    /// Data lender that the volume must reach before it serves; `None` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read or has no valid address.
    pub(crate) fn unannounced_to(&self) -> io::Result<Option<NetAddress>> {
        let path = self.unannounced();
        let bytes = match files::read(&path, UNANNOUNCED_BYTES_MAX) {
            Err(FileRefusal::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let address = text.trim_end().parse();
        address.map(Some).map_err(io::Error::other)
    }

    /// Records that the data lender was reached.
    pub(crate) fn mark_announced(&self) -> io::Result<()> {
        fs::remove_file(self.unannounced())?;
        sync_directory(&self.root)
    }

    /// Whether the volume's superblock exists.
    pub fn exists(&self) -> bool {
        self.superblock().is_file()
    }

    /// Creates a volume of `bytes` zeros with a journal of `journal_bytes`. Durable on return.
    ///
    /// # Errors
    ///
    /// [`VolumeCreateError`] if the path exists, the size is invalid, or a file cannot be written.
    pub fn create(&self, bytes: u64, journal_bytes: u64) -> Result<VolumeId, VolumeCreateError> {
        let volume = VolumeId(u128::from_le_bytes(random()));
        self.make(|place| {
            let journal = Journal::create(&place.journal(), journal_bytes)?;
            place.fill(volume, journal, bytes)
        })?;
        Ok(volume)
    }

    /// Creates a volume of zeros whose journal's records exist elsewhere, such as a copy; `finish` adds other
    /// files. Durable on return.
    pub(crate) fn create_of(
        &self,
        volume: VolumeId,
        bytes: u64,
        journal: &JournalInit,
        finish: impl FnOnce(&VolumePaths) -> Result<(), VolumeCreateError>,
    ) -> Result<(), VolumeCreateError> {
        self.make(|place| {
            JournalFollower::create(&place.journal(), journal)?;
            finish(place)?;
            place.fill(volume, journal.journal, bytes)
        })
    }

    /// Lets `fill` create the directory's contents under a temporary name, then renames the complete
    /// directory.
    pub(crate) fn make(
        &self,
        fill: impl FnOnce(&VolumePaths) -> Result<(), VolumeCreateError>,
    ) -> Result<(), VolumeCreateError> {
        let failed = |source| VolumeCreateError::Io {
            path: self.root.clone(),
            source,
        };
        // Only `..` and the root have no name, and both exist.
        let exists = || VolumeCreateError::Exists(self.root.clone());
        let name = self.root.file_name().ok_or_else(exists)?;
        self.check_free()?;
        // The directory appears complete under its name. A crash leaves a directory of a temporary name,
        // which the next creation of this volume removes.
        let mut beginning = OsString::from(".");
        beginning.push(name);
        beginning.push(UNFINISHED);
        self.remove_unfinished();
        let mut unfinished = beginning;
        unfinished.push(format!("{:08x}", u32::from_le_bytes(random())));
        let unfinished = VolumePaths::at(&self.parent().join(unfinished));
        fs::create_dir(&unfinished.root).map_err(failed)?;
        // A process that removes leftovers takes this lock first. If it has the lock, this creation fails.
        let making = File::open(&unfinished.root).map_err(failed)?;
        making.try_lock().map_err(|error| failed(error.into()))?;
        let made = fill(&unfinished).and_then(|()| {
            // The rename replaces at most an empty directory created at this instant.
            fs::rename(&unfinished.root, &self.root).map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists
                | io::ErrorKind::DirectoryNotEmpty
                | io::ErrorKind::NotADirectory => exists(),
                _ => failed(error),
            })
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&unfinished.root);
        }
        drop(making);
        // The temporary name must not appear in messages.
        made.map_err(|error| match error {
            VolumeCreateError::Volume { cause, .. } => VolumeCreateError::Volume {
                path: self.root.clone(),
                cause,
            },
            other => other,
        })?;
        sync_directory(self.parent()).map_err(failed)
    }

    /// Removes leftovers of interrupted creations of this name. Those that cannot be removed do no harm.
    fn remove_unfinished(&self) {
        for (path, name) in unfinished_in(self.parent()) {
            if self.root.file_name() == Some(&name) {
                let _ = fs::remove_dir_all(path);
            }
        }
    }

    fn parent(&self) -> &Path {
        let parent = self.root.parent().filter(|parent| !parent.as_os_str().is_empty());
        parent.unwrap_or(Path::new("."))
    }

    fn fill(&self, volume: VolumeId, journal: JournalId, bytes: u64) -> Result<(), VolumeCreateError> {
        create(self.new_files(false)?, volume, journal, bytes).map_err(|cause| {
            VolumeCreateError::Volume {
                path: self.root.clone(),
                cause,
            }
        })?;
        self.sync()
    }

    /// Creates the empty files of a new volume.
    pub(crate) fn new_files(&self, dirty: bool) -> Result<DiskFiles<VolumeFile>, VolumeCreateError> {
        let failed = |path: PathBuf| move |source| VolumeCreateError::Io { path, source };
        let make = |path: PathBuf| VolumeFile::create(&path).map_err(failed(path));
        Ok(DiskFiles {
            image: make(self.image())?,
            sums: make(self.sums())?,
            superblock: make(self.superblock())?,
            dirty: dirty.then(|| make(self.dirty())).transpose()?,
        })
    }

    /// Syncs the directory, so that the names are as durable as the files.
    pub(crate) fn sync(&self) -> Result<(), VolumeCreateError> {
        sync_directory(&self.root).map_err(|source| VolumeCreateError::Io {
            path: self.root.clone(),
            source,
        })
    }

    /// Opens the files of a volume. The dirty map is created when there is a data lender for the first time.
    pub(crate) fn open_files(&self, dirty: bool) -> Result<DiskFiles<VolumeFile>, VolumeOpenError> {
        let open = |path: PathBuf| {
            VolumeFile::open(&path, true).map_err(|source| VolumeOpenError::File { path, source })
        };
        let map = || {
            let path = self.dirty();
            // If the lookup fails, the file may exist: opening it reports why it cannot be used (rule 17).
            match path.try_exists().unwrap_or(true) {
                true => open(path),
                false => VolumeFile::create(&path).map_err(|source| VolumeOpenError::File { path, source }),
            }
        };
        Ok(DiskFiles {
            image: open(self.image())?,
            sums: open(self.sums())?,
            superblock: open(self.superblock())?,
            dirty: dirty.then(map).transpose()?,
        })
    }

    /// Opens the files on a modelled disk that takes `sync_delay` longer for each sync.
    pub(crate) fn open_modelled_files(
        &self,
        dirty: bool,
        sync_delay: Duration,
    ) -> Result<DiskFiles<VolumeFile>, VolumeOpenError> {
        let files = self.open_files(dirty)?;
        if sync_delay.is_zero() {
            return Ok(files);
        }
        let slower = |file: VolumeFile, path: PathBuf| {
            let slower = file.on_modelled_disk(sync_delay);
            slower.map_err(|source| VolumeOpenError::File { path, source })
        };
        Ok(DiskFiles {
            image: slower(files.image, self.image())?,
            sums: slower(files.sums, self.sums())?,
            superblock: slower(files.superblock, self.superblock())?,
            dirty: files.dirty.map(|map| slower(map, self.dirty())).transpose()?,
        })
    }

    /// Fails if anything exists at the path.
    pub(crate) fn check_free(&self) -> Result<(), VolumeCreateError> {
        match self.root.file_name().is_some() && self.root.symlink_metadata().is_err() {
            true => Ok(()),
            false => Err(VolumeCreateError::Exists(self.root.clone())),
        }
    }

    /// Inspects the volume without opening it: nothing is changed and no lender is asked.
    ///
    /// # Errors
    ///
    /// [`VolumeInspectError`] if the superblock, the image or the journal cannot be read.
    pub fn inspect(&self) -> Result<VolumeInspection, VolumeInspectError> {
        let failed = |path: PathBuf| move |source| VolumeInspectError::File { path, source };
        let open = |path: PathBuf| VolumeFile::open(&path, false).map_err(failed(path));
        let superblock = VolumeSuperblock::read(&open(self.superblock())?).map_err(|cause| {
            VolumeInspectError::Volume {
                path: self.root.clone(),
                cause,
            }
        })?;
        let image = open(self.image())?;
        let journal = JournalInspector::open(&self.journal())?;
        Ok(VolumeInspection {
            superblock,
            image_taken_bytes: image.taken_bytes().map_err(failed(self.image()))?,
            in_use: journal.in_use(),
            unapplied: journal.has_records(),
            journal_bytes: journal.capacity(),
            members: journal
                .view()
                .members
                .iter()
                .map(|member| member.address.clone())
                .collect(),
        })
    }

    /// Settings from the file, overridden by the environment.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the file cannot be read or a value is invalid.
    pub fn settings(&self) -> Result<crate::settings::VolumeSettings, SettingsError> {
        let file = self.settings_file();
        // If the lookup fails, the file may exist: loading it reports why it cannot be read (rule 17).
        let settings = match file.try_exists().unwrap_or(true) {
            true => crate::settings::VolumeSettings::load(&file)?,
            false => crate::settings::VolumeSettings::from(JournalSettings::default()),
        };
        settings.with_environment(&|name| std::env::var(name).ok())
    }
}

/// Leftovers in `directory` of interrupted creations: the directories, and the names that the volumes would
/// have had. The next creation of a volume of that name removes them.
pub fn unfinished_in(directory: &Path) -> Vec<(PathBuf, OsString)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let left = entries.filter_map(|entry| {
        let name = unfinished_name(&entry.file_name())?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        // A directory still being created is locked.
        let is_left = || File::open(entry.path()).is_ok_and(|directory| directory.try_lock().is_ok());
        (is_directory && is_left()).then(|| (entry.path(), name))
    });
    left.collect()
}

/// `NAME` of `.NAME.new-01234567`.
fn unfinished_name(name: &OsStr) -> Option<OsString> {
    let name = name.as_bytes().strip_prefix(b".")?;
    let at = name.len().checked_sub(UNFINISHED.len() + 8)?;
    let (name, rest) = name.split_at(at);
    let number = rest.strip_prefix(UNFINISHED.as_bytes())?;
    let is_one = !name.is_empty() && number.iter().all(u8::is_ascii_hexdigit);
    is_one.then(|| OsStr::from_bytes(name).to_owned())
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("Linux supplies random bytes once it has booted");
    bytes
}
