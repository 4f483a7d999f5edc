//! Header file of a replica: two slots with its header. It makes a volume's directory a replica.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use netram_block_machine::{ReplicaHeader, ReplicaHeaderError};
use netram_journal::file::DiskFile;
use netram_process::files::{self, FileAccess, FileRefusal, PRIVATE};
use netram_proto::journal::{SlotError, SlotPair};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::IoError;

/// Failure to read a replica's header file.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaHeaderFileError {
    /// The file cannot be opened.
    #[error("{0}")]
    Open(io::Error),
    /// The file cannot be read.
    #[error("{0}")]
    Io(IoError),
    /// The file is not a replica's.
    #[error("this is not a replica's header file")]
    Foreign,
    /// Both slots are damaged.
    #[error(
        "both slots of the replica's header are damaged; delete the replica, and its client will create it again"
    )]
    Damaged,
    /// The header is invalid.
    #[error("{0}")]
    Contents(ReplicaHeaderError),
}

/// The open header file.
pub(crate) struct ReplicaHeaderFile {
    file: DiskFile,
    slots: SlotPair,
    newest: ReplicaHeader,
}

impl ReplicaHeaderFile {
    /// Path of the file in a volume's directory.
    pub(crate) fn path(root: &Path) -> PathBuf {
        root.join("replica")
    }

    /// Creates the file. Durable on return, except for its name.
    pub(crate) fn create(root: &Path, standing: &ReplicaHeader) -> io::Result<()> {
        let file = files::create_new(&ReplicaHeaderFile::path(root), PRIVATE)?;
        file.set_len(SlotPair::bytes(SLOT_BYTES))?;
        let file = DiskFile::new(file);
        SlotPair::create(&file, ReplicaHeader::MAGIC, SLOT_BYTES, &standing.encode())
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Opens the file.
    pub(crate) fn open(root: &Path) -> Result<ReplicaHeaderFile, ReplicaHeaderFileError> {
        let opened = files::open(&ReplicaHeaderFile::path(root), FileAccess::Write);
        ReplicaHeaderFile::of(opened.map_err(|refusal| ReplicaHeaderFileError::Open(refusal.into()))?)
    }

    /// Reads the header without locking the file; `None` if there is no file.
    pub(crate) fn look(root: &Path) -> Result<Option<ReplicaHeader>, ReplicaHeaderFileError> {
        match files::open(&ReplicaHeaderFile::path(root), FileAccess::Read) {
            Err(FileRefusal::System(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(refusal) => Err(ReplicaHeaderFileError::Open(refusal.into())),
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

    /// The newest header.
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
