//! The file that makes a volume's directory a replica: two slots of what it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use netram_block_machine::{Standing, StandingError};
use netram_journal::file::DiskFile;
use netram_proto::journal::{SlotError, Slots};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::IoError;

/// Why a replica's file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StandingFileError {
    /// It cannot be opened.
    #[error("{0}")]
    Open(io::Error),
    /// It cannot be read.
    #[error("{0}")]
    Io(IoError),
    /// Not a replica's.
    #[error("not the file of a replica")]
    Foreign,
    /// Both copies are damaged.
    #[error("both copies of what the replica is are damaged; have it made anew by its client")]
    Damaged,
    /// The contents make no sense.
    #[error("{0}")]
    Contents(StandingError),
}

/// The file, open.
pub(crate) struct StandingFile {
    file: DiskFile,
    slots: Slots,
    newest: Standing,
}

impl StandingFile {
    /// Where it is in a volume's directory.
    pub(crate) fn path(root: &Path) -> PathBuf {
        root.join("replica")
    }

    /// Makes it. Durable on return, but for its name.
    pub(crate) fn create(root: &Path, standing: &Standing) -> io::Result<()> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(StandingFile::path(root))?;
        file.set_len(Slots::bytes(SLOT_BYTES))?;
        let file = DiskFile::new(file);
        Slots::create(&file, Standing::MAGIC, SLOT_BYTES, &standing.encode()).map_err(io::Error::other)?;
        Ok(())
    }

    /// Opens it.
    pub(crate) fn open(root: &Path) -> Result<StandingFile, StandingFileError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(StandingFile::path(root));
        StandingFile::of(opened.map_err(StandingFileError::Open)?)
    }

    /// What it says, without taking it; `None` where there is none.
    pub(crate) fn look(root: &Path) -> Result<Option<Standing>, StandingFileError> {
        match File::open(StandingFile::path(root)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StandingFileError::Open(error)),
            Ok(file) => Ok(Some(StandingFile::of(file)?.newest)),
        }
    }

    fn of(file: File) -> Result<StandingFile, StandingFileError> {
        let file = DiskFile::new(file);
        let (slots, payload) =
            Slots::open(&file, Standing::MAGIC, SLOT_BYTES).map_err(|error| match error {
                SlotError::Io(error) => StandingFileError::Io(error),
                SlotError::Foreign => StandingFileError::Foreign,
                SlotError::Damaged => StandingFileError::Damaged,
            })?;
        let newest = Standing::decode(&payload).map_err(StandingFileError::Contents)?;
        Ok(StandingFile { file, slots, newest })
    }

    /// What it says.
    pub(crate) fn newest(&self) -> Standing {
        self.newest
    }

    /// Makes `standing` durable.
    pub(crate) fn store(&mut self, standing: Standing) -> Result<(), IoError> {
        self.slots.store(&self.file, &standing.encode())?;
        self.newest = standing;
        Ok(())
    }
}
