//! Why a copy cannot be used, and what its client is told of it.

use std::path::PathBuf;

use netram_block::{ApplyError, DeviceError, FollowError, GrowError};
use netram_proto::id::Lsn;
use netram_proto::port::IoError;
use netram_proto::wire::{FrameKind, Header, Refusal};

use super::quota::OverQuota;
use super::standing::StandingFileError;
use crate::error::CreateError;

const EIO: u64 = 5;

/// Why a copy cannot be used, now or any more. It is closed, and opened anew for the next session.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostError {
    /// Its journal cannot be opened: another process has it, or it is damaged.
    #[error("{0}")]
    Journal(#[from] netram_journal::OpenError),
    /// It could not be made.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// There is no room for it.
    #[error("{0}")]
    Quota(#[from] OverQuota),
    /// A file cannot be opened.
    #[error("{0}")]
    Open(#[from] crate::error::OpenError),
    /// Its volume cannot be opened.
    #[error("{0}")]
    Volume(#[from] netram_block::OpenError),
    /// Its standing is not known.
    #[error("{0}")]
    Standing(#[from] StandingFileError),
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
    Grow(#[from] GrowError),
    /// The system has no threads left.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// A defect, whose message was printed.
    #[error("the thread that brings stages into the copy's image panicked, a defect")]
    Panicked,
}

impl From<IoError> for HostError {
    fn from(error: IoError) -> HostError {
        HostError::Disk(error)
    }
}

impl From<DeviceError> for HostError {
    fn from(error: DeviceError) -> HostError {
        HostError::Image(error)
    }
}

impl HostError {
    /// What the client is told.
    pub(super) fn refusal(&self) -> Header {
        match self {
            HostError::Quota(over) => over.refusal(),
            // No copy of such a size, or with such a log, can be: the client asks for what makes no sense.
            HostError::Create(
                CreateError::Journal(netram_journal::CreateError::Size(_))
                | CreateError::Volume {
                    cause: GrowError::Size { .. },
                    ..
                },
            ) => refusal(Refusal::Malformed, 0),
            _ => refusal(Refusal::DiskFailed, self.number()),
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
            HostError::Disk(error)
            | HostError::Image(DeviceError::Io(error))
            | HostError::Standing(StandingFileError::Io(error))
            | HostError::Journal(netram_journal::OpenError::Store { source: error, .. })
            | HostError::Volume(netram_block::OpenError::File { cause: error, .. })
            | HostError::Grow(GrowError::File { cause: error, .. })
            | HostError::Create(CreateError::Volume {
                cause: GrowError::File { cause: error, .. },
                ..
            }) => of(error),
            HostError::Image(error) => u64::try_from(error.errno()).unwrap_or(EIO),
            HostError::Apply(error)
            | HostError::Follow(FollowError::Apply(error))
            | HostError::Volume(netram_block::OpenError::Apply(error)) => of_apply(*error),
            HostError::File(_, error) | HostError::Thread(error) => of_system(error),
            HostError::Create(CreateError::Io { source, .. })
            | HostError::Create(CreateError::Journal(netram_journal::CreateError::Io { source, .. })) => {
                // What the system did not number is a file system that has no room for more files.
                source.raw_os_error().map_or(28, |_| of_system(source))
            }
            // EBUSY: another process of that machine has it.
            HostError::Journal(netram_journal::OpenError::InUse { .. }) => 16,
            _ => EIO,
        }
    }
}

/// A refusal with its number.
pub(super) fn refusal(refusal: Refusal, number: u64) -> Header {
    Header {
        flags: refusal as u8,
        lsn: Lsn(number),
        ..Header::new(FrameKind::Refuse)
    }
}
