//! The disk beneath a database, and what its processes share there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use netram_client::file::{DiskFile, io_error};
use netram_home::durable;
use netram_proto::journal::{SlotError, Slots};
use netram_proto::port::IoError;
use rustix::fs::{FlockOperation, flock};

use crate::beneath::Beneath;
use crate::change::Role;
use crate::place::Place;

/// What the file with the start begins with.
pub(crate) const START_MAGIC: [u8; 8] = *b"ntrmstrt";
/// Bytes of each of its two slots.
pub(crate) const START_BYTES: usize = 512;

/// The disk beneath one database.
pub(crate) struct Disk {
    place: Place,
    /// Open as long as the database is, and not read: closing any descriptor of a file ends all locks that the process has on it, SQLite's too.
    main: File,
}

/// A file that nobody else locks while it is open.
pub(crate) struct Lock {
    _file: File,
}

/// A lock's file, made if there is none.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Locks it, unless somebody else has.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<Lock>> {
    let file = lock_file(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { _file: file })),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn told(error: &io::Error) -> IoError {
    io_error(error)
}

fn forgive<T>(done: io::Result<T>) -> Result<Option<T>, IoError> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(told(&error)),
    }
}

impl Disk {
    pub(crate) fn at(place: &Place) -> io::Result<Disk> {
        // To write, which is not done but by recovery, before anybody has a lock.
        let main = OpenOptions::new()
            .read(true)
            .write(true)
            .open(place.file(Role::Main))?;
        Ok(Disk {
            place: place.clone(),
            main,
        })
    }

    fn with<T>(&self, role: Role, act: impl FnOnce(&File) -> io::Result<T>) -> Result<T, IoError> {
        let done = match role {
            Role::Main => act(&self.main),
            role => lock_file(&self.place.file(role)).and_then(|file| act(&file)),
        };
        done.map_err(|error| told(&error))
    }

    /// Opened anew each time: other processes write to it.
    fn start_file(&self) -> Result<(DiskFile, Slots, u64), IoError> {
        let opened = OpenOptions::new().read(true).write(true).open(self.place.start());
        let file = DiskFile::new(opened.map_err(|error| told(&error))?);
        let (slots, value) = Slots::open(&file, START_MAGIC, START_BYTES).map_err(|error| match error {
            SlotError::Io(error) => error,
            SlotError::Foreign | SlotError::Damaged => IoError::EIO,
        })?;
        let value = value.try_into().map_err(|_| IoError::EIO)?;
        Ok((file, slots, u64::from_le_bytes(value)))
    }
}

impl Beneath for Disk {
    type Alone = Lock;
    type Held = Lock;

    fn alone(&self) -> Result<Lock, IoError> {
        let locked = lock_file(&self.place.settling()).and_then(|file| {
            flock(&file, FlockOperation::LockExclusive)?;
            Ok(Lock { _file: file })
        });
        locked.map_err(|error| told(&error))
    }

    fn dead(&self, slot: usize) -> Option<Lock> {
        try_lock(&self.place.slot(slot)).ok().flatten()
    }

    fn sync(&self) -> Result<(), IoError> {
        self.main.sync_data().map_err(|error| told(&error))?;
        for role in [Role::Wal, Role::Journal] {
            if let Some(file) = forgive(File::open(self.place.file(role)))? {
                file.sync_data().map_err(|error| told(&error))?;
            }
        }
        durable::sync(self.place.folder()).map_err(|error| told(&error))
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(self.start_file()?.2)
    }

    fn set_start(&self, start: u64) -> Result<(), IoError> {
        let (file, mut slots, before) = self.start_file()?;
        match start > before {
            true => Ok(slots.store(&file, &start.to_le_bytes())?),
            // Nobody has recorded anything since.
            false => Ok(()),
        }
    }

    fn exists(&self, role: Role) -> Result<bool, IoError> {
        let found = self.place.file(role).try_exists();
        found.map_err(|error| told(&error))
    }

    fn write(&self, role: Role, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.with(role, |file| file.write_all_at(bytes, offset))
    }

    fn resize(&self, role: Role, size: u64) -> Result<(), IoError> {
        self.with(role, |file| file.set_len(size))
    }

    fn remove(&self, role: Role) -> Result<(), IoError> {
        forgive(fs::remove_file(self.place.file(role))).map(drop)
    }
}
