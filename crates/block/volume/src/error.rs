//! Why a volume could not be made, opened, looked at or removed: one enum an operation.

use std::io;
use std::path::PathBuf;

use netram_block::{ApplyError, DiskGrowError, DiskOpenError as DiskError};
use netram_proto::port::WaitError;
use netram_store::StoreSettingsError;

use crate::replica::ClaimFacts;
use crate::replica::restore::RestoreError;

/// Why no volume was made. Nothing that was there before was touched.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCreateError {
    /// There is something already.
    #[error(
        "{0} exists already; choose another name, or `netram disk delete` it if it is of no use any more"
    )]
    Exists(PathBuf),
    /// Its journal could not be made.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalCreateError),
    /// Its size is out of bounds, or a file failed.
    #[error("{path}: {cause}")]
    Volume {
        /// The directory.
        path: PathBuf,
        /// Why.
        cause: DiskGrowError,
    },
    /// The file system refused.
    #[error("cannot create the volume: {path}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a volume could not be opened. Nothing was lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum VolumeOpenError {
    /// A file is missing or cannot be opened.
    #[error("{path}: {source}; name the directory that `netram disk create` made")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The settings are wrong.
    #[error("{0}")]
    Settings(#[from] StoreSettingsError),
    /// The journal could not be opened or recovered, or another process has the volume.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The files do not belong together, are damaged, or recovery stopped.
    #[error("{path}: {cause}")]
    Volume {
        /// The directory.
        path: PathBuf,
        /// Why.
        cause: DiskError,
    },
    /// It is a data lender's copy, and not to be opened like this.
    #[error("{path}: {why}")]
    Replica {
        /// The directory.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// It was restored, has not served yet, and its data lender does not hear it.
    #[error(
        "{path}: a restored volume's data lender must hear it before it first serves: {why}. Open it again once that is mended"
    )]
    Unannounced {
        /// The directory.
        path: PathBuf,
        /// Why it is not heard.
        why: Box<RestoreError>,
    },
    /// Somebody has claimed the copy that the data lender keeps: this directory may be an old one.
    #[error(
        "{path}: the data lender keeps a copy of this volume, and {claim}. If a volume that was restored or taken over from it is in use, \
         that one is newer: do not use this one. If none is, say that this directory is the newest: `netram disk recover {path} --newest`"
    )]
    Claimed {
        /// The directory.
        path: PathBuf,
        /// Who claimed it, and when.
        claim: ClaimFacts,
    },
    /// The operator calls this directory the newest, and another volume has served since.
    #[error(
        "{path}: this is not the newest: the data lender's copy says that {claim}, and that volume has served. Use that one"
    )]
    NotNewest {
        /// The directory.
        path: PathBuf,
        /// Who claimed it, and when.
        claim: ClaimFacts,
    },
    /// The operator calls this directory the newest, and the data lender cannot be asked.
    #[error(
        "{path}: {address} does not say what its copy of this volume is, so nobody can tell whether another volume was restored from it. \
         Bring the data lender back, or take it out of the settings if it is lost"
    )]
    DataLenderSilent {
        /// The directory.
        path: PathBuf,
        /// The data lender.
        address: String,
    },
    /// The client of a copy that is to be taken over may be running.
    #[error(
        "{path}: the volume's client was heard {heard} ago, so it may be running: a take-over would fence it, and what it acknowledges meanwhile would be lost. Switch its machine off first. If it is off, say --client-is-off"
    )]
    LiveClient {
        /// The copy's directory.
        path: PathBuf,
        /// How long ago.
        heard: String,
    },
    /// The thread that applies stages could not be started.
    #[error("starting the volume's threads: {0}")]
    Thread(io::Error),
}

/// Why a volume could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum VolumeInspectError {
    /// A file is missing or cannot be opened.
    #[error("{path}: {source}; name the directory that `netram disk create` made")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The superblock is of no use.
    #[error("{path}: {cause}")]
    Volume {
        /// The directory.
        path: PathBuf,
        /// Why.
        cause: DiskError,
    },
    /// The journal is of no use.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
}

/// Why a volume was not removed, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum VolumeDeleteError {
    /// No volume.
    #[error("{path} is left alone: {cause}")]
    NoVolume {
        /// The directory.
        path: PathBuf,
        /// Why it is none.
        cause: DiskError,
    },
    /// Lenders may alone have its newest writes.
    #[error("{0}")]
    NotClosed(#[from] netram_journal::JournalNotClosed),
    /// Another process has it, or its journal is of no use.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The file system refused.
    #[error("cannot remove {path}: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a volume was not closed cleanly. Its journal has everything, and the next opening applies it.
#[derive(Debug, thiserror::Error)]
pub enum VolumeCloseError {
    /// The image did not get all of it.
    #[error(
        "the image was not brought up to date: {0}; the journal has everything, and the next opening applies it"
    )]
    Apply(ApplyError),
    /// The thread that brings stages into the image met a broken invariant of ours.
    #[error(
        "the volume's thread panicked: a defect, whose message was printed; the journal has everything, and the next opening applies it"
    )]
    Panicked,
    /// The journal's disk did not.
    #[error("{0}")]
    Journal(WaitError),
}
