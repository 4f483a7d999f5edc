//! Errors: one enum an operation, one variant a reaction.

use std::fmt;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{AppendError, IoError, LogError, WaitError};

use crate::limit::VOLUME_BYTES_MAX;
use crate::record::VolumeDecodeError;
use crate::superblock::{FORMAT, VolumeId};

/// Failure of a request to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The request reaches beyond the end of the device.
    #[error("request of {length} bytes at offset {offset} reaches beyond the device's {bytes} bytes")]
    OutOfRange {
        /// Offset of the request in bytes.
        offset: u64,
        /// Length of the request in bytes.
        length: u64,
        /// Size of the device in bytes.
        bytes: u64,
    },
    /// The request does not begin and end at a sector.
    #[error(
        "request of {length} bytes at offset {offset} is not aligned: it must begin and end at multiples of 512"
    )]
    Unaligned {
        /// Offset of the request in bytes.
        offset: u64,
        /// Length of the request in bytes.
        length: u64,
    },
    /// The request has too many bytes. Split it.
    #[error("request of {bytes} bytes exceeds the maximum of {max}; split it")]
    TooLarge {
        /// Length of the request in bytes.
        bytes: u64,
        /// Maximum length in bytes.
        max: u32,
    },
    /// The disk under the image is full, and so is the space that bridges such a time. Nothing was lost: free
    /// some space, and writes continue.
    #[error("the disk under the volume is full; free some space and writes will continue")]
    NoSpace,
    /// The volume accepts no writes any more; reads still work.
    #[error("the volume is read-only: {why}")]
    ReadOnly {
        /// Cause and remedy.
        why: &'static str,
    },
    /// The disk does not return the bytes that were written, and no other copy has them.
    #[error(
        "block {block} of the image cannot be read or does not match its checksum; restore it from a copy, or overwrite it"
    )]
    Corrupt {
        /// Number of the block, in units of 4096 bytes.
        block: u64,
    },
    /// The block is only at the data lender, which did not answer in time. A later attempt may succeed.
    #[error(
        "block {block} is only at the data lender, which cannot be reached; start it or repair the network, then try again"
    )]
    Missing {
        /// Number of the block, in units of 4096 bytes.
        block: u64,
    },
    /// A newer writer owns the volume. Stop; never retry.
    #[error("fenced: a newer writer owns the volume; stop this process")]
    Fenced,
    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,
    /// A file of the volume failed. Whether a write took effect is unknown.
    #[error("a file of the volume failed: {0}")]
    Io(IoError),
}

impl DeviceError {
    /// The closest POSIX error number.
    pub fn errno(&self) -> i32 {
        const EIO: i32 = 5;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const ESHUTDOWN: i32 = 108;
        match self {
            DeviceError::OutOfRange { .. } | DeviceError::Unaligned { .. } | DeviceError::TooLarge { .. } => {
                EINVAL
            }
            DeviceError::NoSpace => ENOSPC,
            DeviceError::ReadOnly { .. } => EROFS,
            DeviceError::Corrupt { .. } | DeviceError::Missing { .. } => EIO,
            DeviceError::Fenced | DeviceError::Closed => ESHUTDOWN,
            DeviceError::Io(error) => error.errno,
        }
    }
}

/// A file of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// File of the blocks.
    Image,
    /// File of the blocks' checksums.
    Sums,
    /// File of the volume's id, journal and size.
    Superblock,
    /// Map of the blocks that the data lender must be sent.
    Dirty,
}

impl fmt::Display for FileKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            FileKind::Image => "the image",
            FileKind::Sums => "the file of checksums",
            FileKind::Superblock => "the superblock",
            FileKind::Dirty => "the dirty map",
        })
    }
}

/// Failure to open a volume. The attempt loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskOpenError {
    /// A file of the volume failed.
    #[error("{file} failed: {cause}")]
    File {
        /// The file.
        file: FileKind,
        /// Error from the operating system.
        cause: IoError,
    },
    /// The file does not belong to any netram volume.
    #[error("{file} does not belong to a netram volume; put back the volume's own file")]
    Foreign {
        /// The file.
        file: FileKind,
    },
    /// The file's header is damaged.
    #[error("the header of {file} is damaged; restore the file from a copy")]
    Damaged {
        /// The file.
        file: FileKind,
    },
    /// The file was written in another version of the format.
    #[error(
        "{file} has format {found}, but this version reads only {FORMAT}; open it with the netram version that wrote it"
    )]
    Format {
        /// The file.
        file: FileKind,
        /// Its format.
        found: u32,
    },
    /// The file is too short.
    #[error("{file} is truncated: it has {found} bytes instead of {expected}; restore it from a copy")]
    Short {
        /// The file.
        file: FileKind,
        /// Expected size in bytes.
        expected: u64,
        /// Actual size in bytes.
        found: u64,
    },
    /// The file belongs to another volume.
    #[error("{file} belongs to volume {found}, not to {expected}; put back the right one")]
    OtherVolume {
        /// The file.
        file: FileKind,
        /// Id of the volume being opened.
        expected: VolumeId,
        /// Id in the file.
        found: VolumeId,
    },
    /// The journal belongs to another volume.
    #[error(
        "the volume's newest writes are in journal {expected}, but this is journal {found}; put back the right one"
    )]
    OtherJournal {
        /// Id of the volume's journal.
        expected: JournalId,
        /// Id of the journal that was opened.
        found: JournalId,
    },
    /// The journal's records are too small for one sector.
    #[error(
        "the journal's maximum record of {payload_max} bytes is too small for a volume; give it a larger log or window"
    )]
    SmallJournal {
        /// Maximum bytes of a record's payload.
        payload_max: usize,
    },
    /// The journal ends before the records that the image may have.
    #[error(
        "the image may have writes up to LSN {applying}, but the journal ends at {stable}: it lost its end or is an older copy; put back the right journal, or restore the volume"
    )]
    JournalBehind {
        /// LSN below which the image may have records.
        applying: Lsn,
        /// End of the journal.
        stable: Lsn,
    },
    /// A record of the journal is invalid for this volume.
    #[error(
        "the record at LSN {lsn} does not belong to this volume: {cause}; files of two volumes were mixed: put back the right ones"
    )]
    Record {
        /// Where the record begins.
        lsn: Lsn,
        /// Reason.
        cause: VolumeDecodeError,
    },
    /// The journal could not be applied to the image. The journal keeps every record.
    #[error("recovery failed: {0}")]
    Apply(ApplyError),
}

/// Failure to apply a stage to the image. The journal and the stage keep all of it, and the next attempt
/// starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// A file failed.
    #[error("{file} failed: {cause}")]
    File {
        /// The file.
        file: FileKind,
        /// Error from the operating system.
        cause: IoError,
    },
    /// The journal could not be read or trimmed.
    #[error("{0}")]
    Log(LogError),
    /// The journal's disk did not store the stage's records.
    #[error("{0}")]
    Wait(WaitError),
    /// A part of a block was written, and the rest is only at the data lender, which did not answer in time.
    #[error(
        "the rest of block {block} is only at the data lender, which cannot be reached; start it or repair the network"
    )]
    Missing {
        /// Number of the block, in units of 4096 bytes.
        block: u64,
    },
}

/// Failure to bring a data lender's copy up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskResyncError {
    /// The volume was opened without a dirty map.
    #[error("the volume was opened without a data lender; configure one and open the volume again")]
    NoMap,
    /// The volume itself is still being restored.
    #[error(
        "the volume is still being restored and cannot supply blocks to another copy; wait until the restore has ended"
    )]
    Restoring,
    /// A file or the journal failed.
    #[error("{0}")]
    Apply(#[from] ApplyError),
}

/// Failure to read new records of the journal into stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The journal could not be read.
    #[error("{0}")]
    Log(LogError),
    /// The records could not be applied to the image.
    #[error("{0}")]
    Apply(ApplyError),
    /// A record of the journal is invalid. No record behind it can be read.
    #[error("the record at LSN {lsn} does not belong to this volume: {cause}")]
    Record {
        /// Where the record begins.
        lsn: Lsn,
        /// Reason.
        cause: VolumeDecodeError,
    },
}

/// Failure to grow a volume. Its size is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskGrowError {
    /// The size is not valid for a volume.
    #[error(
        "{asked} bytes is not a valid volume size; choose a multiple of 4096, at most {VOLUME_BYTES_MAX}"
    )]
    Size {
        /// Requested size in bytes.
        asked: u64,
    },
    /// The volume would become smaller.
    #[error("the volume has {bytes} bytes and cannot shrink to {asked}")]
    Shrink {
        /// Present size in bytes.
        bytes: u64,
        /// Requested size in bytes.
        asked: u64,
    },
    /// A file failed.
    #[error("{file} failed: {cause}; free some space or repair the disk, then try again")]
    File {
        /// The file.
        file: FileKind,
        /// Error from the operating system.
        cause: IoError,
    },
}

impl From<FollowError> for DiskOpenError {
    fn from(error: FollowError) -> DiskOpenError {
        match error {
            FollowError::Log(error) => DiskOpenError::Apply(ApplyError::Log(error)),
            FollowError::Apply(error) => DiskOpenError::Apply(error),
            FollowError::Record { lsn, cause } => DiskOpenError::Record { lsn, cause },
        }
    }
}

impl From<AppendError> for DeviceError {
    fn from(error: AppendError) -> DeviceError {
        match error {
            AppendError::Fenced { .. } => DeviceError::Fenced,
            AppendError::DiskFailed(_) => DeviceError::ReadOnly {
                why: "its journal's disk failed; repair the disk and open the volume again to recover",
            },
            AppendError::Closed => DeviceError::Closed,
            // Records are split to the journal's maximum and room is made before, so here the log has no room
            // at all.
            AppendError::TooLarge { .. } | AppendError::Full { .. } => DeviceError::NoSpace,
        }
    }
}

impl From<WaitError> for DeviceError {
    fn from(error: WaitError) -> DeviceError {
        match error {
            WaitError::Fenced { .. } => DeviceError::Fenced,
            WaitError::DiskFailed(cause) => DeviceError::Io(cause),
            WaitError::Closed => DeviceError::Closed,
        }
    }
}

impl From<ApplyError> for DeviceError {
    fn from(error: ApplyError) -> DeviceError {
        match error {
            ApplyError::File { cause, .. } if cause == IoError::ENOSPC => DeviceError::NoSpace,
            ApplyError::File { cause, .. } | ApplyError::Log(LogError::Io(cause)) => DeviceError::Io(cause),
            ApplyError::Log(LogError::Closed) => DeviceError::Closed,
            ApplyError::Log(_) => DeviceError::Io(IoError::EIO),
            ApplyError::Wait(error) => error.into(),
            ApplyError::Missing { block } => DeviceError::Missing { block },
        }
    }
}
