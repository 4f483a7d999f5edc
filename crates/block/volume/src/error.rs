//! Failures to create, open, inspect and delete a volume: one enum an operation.

use std::io;
use std::path::PathBuf;

use netram_block::{ApplyError, DiskGrowError, DiskOpenError as DiskError};
use netram_journal::settings::SettingsError;
use netram_proto::port::WaitError;

use crate::replica::ClaimFacts;
use crate::replica::restore::RestoreError;

/// Failure to create a volume. Existing files are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCreateError {
    /// A file or directory exists at the path.
    #[error(
        "{0} already exists; choose another name, or delete it with `netram volume delete` if it is no longer needed"
    )]
    Exists(PathBuf),
    /// The journal could not be created.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalCreateError),
    /// The size is out of bounds, or a file failed.
    #[error("{path}: {cause}")]
    Volume {
        /// Directory of the volume.
        path: PathBuf,
        /// Reason.
        cause: DiskGrowError,
    },
    /// The file system returned an error.
    #[error("cannot create the volume: {path}: {source}")]
    Io {
        /// Directory or file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Failure to open a volume. The attempt loses nothing.
#[derive(Debug, thiserror::Error)]
pub enum VolumeOpenError {
    /// A file is missing or cannot be opened.
    #[error("{path}: {source}; give the directory that `netram volume create` created")]
    File {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The settings are invalid.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The journal could not be opened or recovered, or another process has the volume open.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The files do not belong together or are damaged, or recovery failed.
    #[error("{path}: {cause}")]
    Volume {
        /// Directory of the volume.
        path: PathBuf,
        /// Reason.
        cause: DiskError,
    },
    /// The directory is a data lender's copy and cannot be opened like this.
    #[error("{path}: {why}")]
    Replica {
        /// Directory of the copy.
        path: PathBuf,
        /// Reason and remedy.
        why: String,
    },
    /// The volume was restored, has not served yet, and could not announce itself to its data lender.
    #[error(
        "{path}: a restored volume must reach its data lender before it serves for the first time: {why}. Fix that, then open the volume again"
    )]
    Unannounced {
        /// Directory of the volume.
        path: PathBuf,
        /// Why the data lender was not reached.
        why: Box<RestoreError>,
    },
    /// Another writer has claimed the data lender's copy, so this directory may be out of date.
    #[error(
        "{path}: the data lender keeps a copy of this volume, and {claim}. If a volume restored or taken over from that copy is in use, \
         it is newer: do not use this one. If none is in use, declare this directory the newest: `netram volume recover {path} --newest`"
    )]
    Claimed {
        /// Directory of the volume.
        path: PathBuf,
        /// Writer and time of the claim.
        claim: ClaimFacts,
    },
    /// The operator declared this directory the newest, but another volume has served since.
    #[error(
        "{path}: this directory is not the newest: according to the data lender's copy, {claim}, and that volume has served. Use that one"
    )]
    NotNewest {
        /// Directory of the volume.
        path: PathBuf,
        /// Writer and time of the claim.
        claim: ClaimFacts,
    },
    /// The operator declared this directory the newest, but the data lender does not answer.
    #[error(
        "{path}: the data lender {address} does not answer, so another volume may have been restored from its copy. \
         Start the data lender, or remove it from the settings if it is lost"
    )]
    DataLenderSilent {
        /// Directory of the volume.
        path: PathBuf,
        /// Address of the data lender.
        address: String,
    },
    /// The client of a copy to be taken over may still be running.
    #[error(
        "{path}: the volume's client sent its last message {heard} ago and may still be running. A takeover would fence it, and writes that it acknowledges in the meantime would be lost. Switch its machine off first. If it is off, add --client-is-off"
    )]
    LiveClient {
        /// Directory of the copy.
        path: PathBuf,
        /// Time since the client's last message.
        heard: String,
    },
    /// The applier thread could not be started.
    #[error("cannot start the volume's threads: {0}")]
    Thread(io::Error),
}

/// Failure to give a volume a recovery key. The volume keeps the one that it had.
#[derive(Debug, thiserror::Error)]
pub enum VolumeRekeyError {
    /// A file of the volume cannot be read or written.
    #[error("{path}: {source}; give the directory that `netram volume create` created")]
    File {
        /// File that failed.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The superblock cannot be used.
    #[error("{path}: {cause}")]
    Volume {
        /// Directory of the volume.
        path: PathBuf,
        /// Defect of the superblock.
        cause: DiskError,
    },
}

/// Failure to inspect a volume.
#[derive(Debug, thiserror::Error)]
pub enum VolumeInspectError {
    /// A file is missing or cannot be opened.
    #[error("{path}: {source}; give the directory that `netram volume create` created")]
    File {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The superblock is damaged or of another version.
    #[error("{path}: {cause}")]
    Volume {
        /// Directory of the volume.
        path: PathBuf,
        /// Reason.
        cause: DiskError,
    },
    /// The journal is damaged or of another version.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
}

/// Failure to delete a volume, or to delete all of it.
#[derive(Debug, thiserror::Error)]
pub enum VolumeDeleteError {
    /// The directory is not a volume.
    #[error("{path} was not deleted: {cause}")]
    NoVolume {
        /// The directory.
        path: PathBuf,
        /// Why it is not a volume.
        cause: DiskError,
    },
    /// The newest writes may exist only at lenders.
    #[error("{0}")]
    NotClosed(#[from] netram_journal::JournalNotClosed),
    /// Another process has the volume open, or its journal cannot be read.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The file system returned an error.
    #[error("cannot remove {path}: {source}")]
    Io {
        /// Directory or file.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Failure to close a volume cleanly. Its journal has every write, and the next opening applies it.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCloseError {
    /// Some records could not be applied to the image.
    #[error(
        "the image could not be brought up to date: {0}; the journal has every write, and the next opening applies it"
    )]
    Apply(ApplyError),
    /// The applier thread panicked.
    #[error(
        "the volume's thread panicked because of a bug; see its message above. The journal has every write, and the next opening applies it"
    )]
    Panicked,
    /// The journal's disk did not store every record.
    #[error("{0}")]
    Journal(WaitError),
}
