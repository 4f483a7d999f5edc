//! The file that makes a volume's directory a replica: two slots of what it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use netram_block_machine::{ReplicaHeader, ReplicaHeaderError};
use netram_journal::file::DiskFile;
use netram_proto::journal::{SlotError, SlotPair};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::IoError;

/// Why a replica's file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaHeaderFileError {
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
    Contents(ReplicaHeaderError),
}

/// The file, open.
pub(crate) struct ReplicaHeaderFile {
    file: DiskFile,
    slots: SlotPair,
    newest: ReplicaHeader,
}

impl ReplicaHeaderFile {
    /// Where it is in a volume's directory.
    pub(crate) fn path(root: &Path) -> PathBuf {
        root.join("replica")
    }

    /// Makes it. Durable on return, but for its name.
    pub(crate) fn create(root: &Path, standing: &ReplicaHeader) -> io::Result<()> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(ReplicaHeaderFile::path(root))?;
        file.set_len(SlotPair::bytes(SLOT_BYTES))?;
        let file = DiskFile::new(file);
        SlotPair::create(&file, ReplicaHeader::MAGIC, SLOT_BYTES, &standing.encode())
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Opens it.
    pub(crate) fn open(root: &Path) -> Result<ReplicaHeaderFile, ReplicaHeaderFileError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(ReplicaHeaderFile::path(root));
        ReplicaHeaderFile::of(opened.map_err(ReplicaHeaderFileError::Open)?)
    }

    /// What it says, without taking it; `None` where there is none.
    pub(crate) fn look(root: &Path) -> Result<Option<ReplicaHeader>, ReplicaHeaderFileError> {
        match File::open(ReplicaHeaderFile::path(root)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ReplicaHeaderFileError::Open(error)),
            Ok(file) => Ok(Some(ReplicaHeaderFile::of(file)?.newest)),
        }
    }

    fn of(file: File) -> Result<ReplicaHeaderFile, ReplicaHeaderFileError> {
        let file = DiskFile::new(file);
        let (slots, payload) =
            SlotPair::open(&file, ReplicaHeader::MAGIC, SLOT_BYTES).map_err(|error| match error {
                SlotError::Io(error) => ReplicaHeaderFileError::Io(error),
                SlotError::Foreign => ReplicaHeaderFileError::Foreign,
                SlotError::Damaged => ReplicaHeaderFileError::Damaged,
            })?;
        let newest = ReplicaHeader::decode(&payload).map_err(ReplicaHeaderFileError::Contents)?;
        Ok(ReplicaHeaderFile { file, slots, newest })
    }

    /// What it says.
    pub(crate) fn newest(&self) -> ReplicaHeader {
        self.newest
    }

    /// Makes `standing` durable.
    pub(crate) fn store(&mut self, standing: ReplicaHeader) -> Result<(), IoError> {
        self.slots.store(&self.file, &standing.encode())?;
        self.newest = standing;
        Ok(())
    }
}
