//! Failures of a copy, and the refusals sent to its client.

use std::path::PathBuf;

use netram_block::{ApplyError, DeviceError, DiskGrowError, FollowError};
use netram_proto::id::Lsn;
use netram_proto::port::IoError;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};

use super::header_file::ReplicaHeaderFileError;
use super::quota::QuotaRefusal;
use crate::error::VolumeCreateError;

const EIO: u64 = 5;

/// Failure of a copy. The copy is closed and reopened for the next session.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplicaError {
    /// The copy's journal cannot be opened: another process has it, or it is damaged.
    #[error("{0}")]
    Journal(#[from] netram_journal::JournalOpenError),
    /// The copy could not be created.
    #[error("{0}")]
    Create(#[from] VolumeCreateError),
    /// The quota has no room for the copy.
    #[error("{0}")]
    Quota(#[from] QuotaRefusal),
    /// A file cannot be opened.
    #[error("{0}")]
    Open(#[from] crate::error::VolumeOpenError),
    /// The copy's volume cannot be opened.
    #[error("{0}")]
    Volume(#[from] netram_block::DiskOpenError),
    /// The copy's header cannot be read.
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
    /// A stage cannot be applied to the image.
    #[error("{0}")]
    Apply(#[from] ApplyError),
    /// The log could not be read, or has a record that is not of the volume.
    #[error("{0}")]
    Follow(#[from] FollowError),
    /// The copy could not be made larger.
    #[error("{0}")]
    Grow(#[from] DiskGrowError),
    /// The operating system cannot start another thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The applier thread panicked; its message was printed.
    #[error("the copy's applier thread panicked because of a bug; see its message in the log")]
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
    /// Refusal to send to the client.
    pub(super) fn refusal(&self) -> FrameHeader {
        match self {
            ReplicaError::Quota(over) => over.refusal(),
            // A copy of this size, or with this log, cannot exist: the client's request is invalid.
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

    /// OS error number of the failure.
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
                // An error without a number means that the file system has no room for another file.
                source.raw_os_error().map_or(28, |_| of_system(source))
            }
            // EBUSY: another process on the data lender's machine has the copy open.
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
