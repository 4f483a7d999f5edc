//! Why a copy cannot be used, and what its client is told of it.

use std::path::PathBuf;

use netram_block::{ApplyError, DeviceError, DiskGrowError, FollowError};
use netram_proto::id::Lsn;
use netram_proto::port::IoError;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};

use super::header_file::ReplicaHeaderFileError;
use super::quota::OverQuota;
use crate::error::VolumeCreateError;

const EIO: u64 = 5;

/// Why a copy cannot be used, now or any more. It is closed, and opened anew for the next session.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplicaError {
    /// Its journal cannot be opened: another process has it, or it is damaged.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// It could not be made.
    #[error("{0}")]
    Create(#[from] VolumeCreateError),
    /// There is no room for it.
    #[error("{0}")]
    Quota(#[from] OverQuota),
    /// A file cannot be opened.
    #[error("{0}")]
    Open(#[from] crate::error::VolumeOpenError),
    /// Its volume cannot be opened.
    #[error("{0}")]
    Volume(#[from] netram_block::DiskOpenError),
    /// Its standing is not known.
    #[error("{0}")]
    Header(#[from] ReplicaHeaderFileError),
    /// A file is missing.
    #[error("{0}: {1}")]
    File(PathBuf, std::io::Error),
    /// The disk failed.
    #[error("{0}")]
    Disk(IoError),
    /// The image failed.
    #[error("{0}")]
    Image(DeviceError),
    /// A stage does not get into the image.
    #[error("{0}")]
    Apply(#[from] ApplyError),
    /// The log could not be read, or has what is none of the volume's.
    #[error("{0}")]
    Follow(#[from] FollowError),
    /// It could not be made larger.
    #[error("{0}")]
    Grow(#[from] DiskGrowError),
    /// The system has no threads left.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// A defect, whose message was printed.
    #[error("the thread that brings stages into the copy's image panicked, a defect")]
    Panicked,
}

impl From<IoError> for ReplicaError {
    fn from(error: IoError) -> ReplicaError {
        ReplicaError::Disk(error)
    }
}

impl From<DeviceError> for ReplicaError {
    fn from(error: DeviceError) -> ReplicaError {
        ReplicaError::Image(error)
    }
}

impl ReplicaError {
    /// What the client is told.
    pub(super) fn refusal(&self) -> FrameHeader {
        match self {
            ReplicaError::Quota(over) => over.refusal(),
            // No copy of such a size, or with such a log, can be: the client asks for what makes no sense.
            ReplicaError::Create(
                VolumeCreateError::Journal(netram_journal::JournalCreateError::Size(_))
                | VolumeCreateError::Volume {
                    cause: DiskGrowError::Size { .. },
                    ..
                },
            ) => refusal(RefusalReason::Malformed, 0),
            _ => refusal(RefusalReason::DiskFailed, self.number()),
        }
    }

    /// The system's number for it.
    fn number(&self) -> u64 {
        let of = |error: &IoError| u64::try_from(error.errno).unwrap_or(EIO);
        let of_apply = |error: ApplyError| u64::try_from(DeviceError::from(error).errno()).unwrap_or(EIO);
        let of_system = |error: &std::io::Error| {
            let errno = error.raw_os_error().and_then(|errno| u64::try_from(errno).ok());
            errno.unwrap_or(EIO)
        };
        match self {
            ReplicaError::Disk(error)
            | ReplicaError::Image(DeviceError::Io(error))
            | ReplicaError::Header(ReplicaHeaderFileError::Io(error))
            | ReplicaError::Journal(netram_journal::JournalOpenError::Store { source: error, .. })
            | ReplicaError::Volume(netram_block::DiskOpenError::File { cause: error, .. })
            | ReplicaError::Grow(DiskGrowError::File { cause: error, .. })
            | ReplicaError::Create(VolumeCreateError::Volume {
                cause: DiskGrowError::File { cause: error, .. },
                ..
            }) => of(error),
            ReplicaError::Image(error) => u64::try_from(error.errno()).unwrap_or(EIO),
            ReplicaError::Apply(error)
            | ReplicaError::Follow(FollowError::Apply(error))
            | ReplicaError::Volume(netram_block::DiskOpenError::Apply(error)) => of_apply(*error),
            ReplicaError::File(_, error) | ReplicaError::Thread(error) => of_system(error),
            ReplicaError::Create(VolumeCreateError::Io { source, .. })
            | ReplicaError::Create(VolumeCreateError::Journal(netram_journal::JournalCreateError::Io {
                source,
                ..
            })) => {
                // What the system did not number is a file system that has no room for more files.
                source.raw_os_error().map_or(28, |_| of_system(source))
            }
            // EBUSY: another process of that machine has it.
            ReplicaError::Journal(netram_journal::JournalOpenError::InUse { .. }) => 16,
            _ => EIO,
        }
    }
}

/// A refusal with its number.
pub(super) fn refusal(refusal: RefusalReason, number: u64) -> FrameHeader {
    FrameHeader {
        flags: refusal as u8,
        lsn: Lsn(number),
        ..FrameHeader::new(FrameKind::Refuse)
    }
}
