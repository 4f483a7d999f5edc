//! The files of a volume: where they are, how they are made and removed.
//!
//! | in the directory | what |
//! |---|---|
//! | `super` | what the volume is, two slots; written last, removed first |
//! | `image` | its blocks |
//! | `sums` | their checksums |
//! | `journal` | the journal's directory; its lock is the volume's |
//! | `netram.toml` | lenders and settings; need not be there |

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use netram_client::{Inspect, Journal, Layout, Place as JournalPlace};
use netram_disk::{Files, Superblock, VolumeId, create};
use netram_home::Settings;
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{CreateError, DeleteError, InspectError};
use crate::file::VolumeFile;

/// Bytes of a new volume's journal: the stages that may wait for the image, and as much for what comes meanwhile.
pub const JOURNAL_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;

/// Where a volume's files are.
#[derive(Clone, Debug)]
pub struct Place {
    root: PathBuf,
}

/// A volume, looked at from outside.
#[derive(Clone, Debug)]
pub struct Inspected {
    /// What it is.
    pub superblock: Superblock,
    /// Bytes of the disk that its image takes.
    pub image_taken_bytes: u64,
    /// Whether a process has it open.
    pub in_use: bool,
    /// Bytes that its journal can hold.
    pub journal_bytes: u64,
    /// Addresses of the lenders that may hold its newest writes: a recovery will ask them.
    pub members: Vec<String>,
}

impl Place {
    /// The volume at `root`.
    pub fn at(root: &Path) -> Place {
        let root = root.to_path_buf();
        Place { root }
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The journal's directory.
    pub fn journal(&self) -> PathBuf {
        self.root.join("journal")
    }

    /// The settings, which need not exist.
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

    /// Whether there is a volume.
    pub fn exists(&self) -> bool {
        self.superblock().is_file()
    }

    /// Makes a volume of `bytes` zeros, with a journal of `journal_bytes`. Durable on return.
    pub fn create(&self, bytes: u64, journal_bytes: u64) -> Result<VolumeId, CreateError> {
        let failed = |source| CreateError::Io {
            path: self.root.clone(),
            source,
        };
        match fs::create_dir(&self.root) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(CreateError::Exists(self.root.clone()));
            }
            Err(error) => return Err(failed(error)),
        }
        let made = self.fill(bytes, journal_bytes);
        if made.is_err() {
            // A half-made volume is of no use to anybody, and holds nothing.
            let _ = fs::remove_dir_all(&self.root);
        }
        made
    }

    fn fill(&self, bytes: u64, journal_bytes: u64) -> Result<VolumeId, CreateError> {
        let journal = Journal::create(&self.journal(), journal_bytes)?;
        let volume = VolumeId(u128::from_le_bytes(random()));
        let failed = |path: PathBuf| move |source| CreateError::Io { path, source };
        let make = |path: PathBuf| VolumeFile::create(&path).map_err(failed(path));
        let files = Files {
            image: make(self.image())?,
            sums: make(self.sums())?,
            superblock: make(self.superblock())?,
        };
        create(files, volume, journal, bytes).map_err(|cause| CreateError::Volume {
            path: self.root.clone(),
            cause,
        })?;
        // The names must be as durable as what they name.
        let parent = self.root.parent().filter(|parent| !parent.as_os_str().is_empty());
        [self.root.as_path(), parent.unwrap_or(Path::new("."))]
            .into_iter()
            .try_for_each(|folder| File::open(folder)?.sync_all())
            .map_err(failed(self.root.clone()))?;
        Ok(volume)
    }

    /// Looks at the volume without opening it: nothing is changed, no lender is asked.
    pub fn inspect(&self) -> Result<Inspected, InspectError> {
        let failed = |path: PathBuf| move |source| InspectError::File { path, source };
        let open = |path: PathBuf| VolumeFile::open(&path, false).map_err(failed(path));
        let superblock =
            Superblock::read(&open(self.superblock())?).map_err(|cause| InspectError::Volume {
                path: self.root.clone(),
                cause,
            })?;
        let image = open(self.image())?;
        let journal = Inspect::open(&self.journal())?;
        Ok(Inspected {
            superblock,
            image_taken_bytes: image.taken_bytes().map_err(failed(self.image()))?,
            in_use: journal.in_use(),
            journal_bytes: journal.capacity(),
            members: journal
                .view()
                .members
                .iter()
                .map(|member| member.address.clone())
                .collect(),
        })
    }

    /// Removes the volume and everything in it. Refuses while it is open, and where there is none.
    pub fn delete(&self) -> Result<(), DeleteError> {
        let failed = |path: PathBuf| move |source| DeleteError::Io { path, source };
        // Not a directory that happens to have this name.
        let file = VolumeFile::open(&self.superblock(), false).map_err(failed(self.superblock()))?;
        Superblock::read(&file).map_err(|cause| DeleteError::NoVolume {
            path: self.root.clone(),
            cause,
        })?;
        let _lock = JournalPlace::of(&self.journal(), Layout::Directory).lock()?;
        let remove = |path: PathBuf| match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(path)(error)),
            _ => Ok(()),
        };
        [self.superblock(), self.image(), self.sums(), self.settings_file()]
            .into_iter()
            .try_for_each(remove)?;
        fs::remove_dir_all(self.journal()).map_err(failed(self.journal()))?;
        // What else lies there is somebody's, who will know.
        fs::remove_dir(&self.root).map_err(failed(self.root.clone()))
    }

    /// The settings: the file's, and those of the environment over them.
    pub fn settings(&self) -> Result<crate::settings::VolumeSettings, netram_home::SettingsError> {
        let file = self.settings_file();
        let settings = match file.exists() {
            true => crate::settings::VolumeSettings::load(&file)?,
            false => crate::settings::VolumeSettings::from(Settings::default()),
        };
        settings.with_environment(&|name| std::env::var(name).ok())
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("Linux gives random bytes once it has booted");
    bytes
}
