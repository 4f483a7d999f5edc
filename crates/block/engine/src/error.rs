//! What can go wrong: one enum an operation, one variant a reaction.

use std::fmt;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{AppendError, IoError, LogError, WaitError};

use crate::limit::VOLUME_BYTES_MAX;
use crate::record::VolumeDecodeError;
use crate::superblock::{FORMAT, VolumeId};

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The request reaches beyond the end.
    #[error("{length} bytes at {offset} reach beyond the device's {bytes} bytes")]
    OutOfRange {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
        /// How large the device is.
        bytes: u64,
    },
    /// The request does not begin or end with a sector.
    #[error("{length} bytes at {offset}: requests must begin and end at multiples of 512")]
    Unaligned {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u64,
    },
    /// The request has too many bytes. Split it.
    #[error("a request of {bytes} bytes exceeds the {max} that are taken at once; split it")]
    TooLarge {
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        max: u32,
    },
    /// The disk under the image is full, and so is the room that bridges that. Nothing was lost: make space,
    /// and writes go on.
    #[error("the disk under the volume is full; make space on it, and writes go on")]
    NoSpace,
    /// The volume takes no writes any more, and still reads.
    #[error("the volume is read-only: {why}")]
    ReadOnly {
        /// What happened to it, and what to do.
        why: &'static str,
    },
    /// The disk does not give the bytes that were written, and nobody else had them.
    #[error(
        "block {block} of the image cannot be read, or does not match its checksum; restore it from a copy, or write it anew"
    )]
    Corrupt {
        /// The block, counted in 4096 bytes.
        block: u64,
    },
    /// The block is only at the data lender, of which nothing came in time. Later it may.
    #[error(
        "block {block} is only at the data lender, which cannot be reached; start it, or mend the way to it, and try again"
    )]
    Missing {
        /// The block, counted in 4096 bytes.
        block: u64,
    },
    /// A newer writer owns the volume. Stop; never retry.
    #[error("fenced: a newer writer owns the volume; stop this process")]
    Fenced,
    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,
    /// A file of the volume failed. What happened to a write is unknown.
    #[error("a file of the volume failed: {0}")]
    Io(IoError),
}

impl DeviceError {
    /// The POSIX error number that says it best.
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

/// One of a volume's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The blocks.
    Image,
    /// Their checksums.
    Sums,
    /// What the volume is.
    Superblock,
    /// What the data lender is to be sent.
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

/// Why a volume could not be opened. Nothing was lost by trying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskOpenError {
    /// A file failed.
    #[error("{file} failed: {cause}")]
    File {
        /// Which.
        file: FileKind,
        /// What the system said.
        cause: IoError,
    },
    /// The file is something else.
    #[error("{file} is none of a netram volume; put the volume's own back")]
    Foreign {
        /// Which.
        file: FileKind,
    },
    /// The file says what cannot be.
    #[error("{file} is damaged where it says whose it is; restore it from a copy")]
    Damaged {
        /// Which.
        file: FileKind,
    },
    /// Written by another version.
    #[error("{file} has format {found}, this version reads {FORMAT}; open it with the version that wrote it")]
    Format {
        /// Which.
        file: FileKind,
        /// Its format.
        found: u32,
    },
    /// The file was cut.
    #[error("{file} has {found} bytes and should have {expected}; it was cut off: restore it from a copy")]
    Short {
        /// Which.
        file: FileKind,
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The file is another volume's.
    #[error("{file} belongs to volume {found}, not to {expected}; put the right one back")]
    OtherVolume {
        /// Which.
        file: FileKind,
        /// The volume being opened.
        expected: VolumeId,
        /// The file's.
        found: VolumeId,
    },
    /// The journal is another volume's.
    #[error(
        "the volume's newest writes are in journal {expected}, and this is journal {found}; put the right one back"
    )]
    OtherJournal {
        /// The volume's.
        expected: JournalId,
        /// The one that was opened.
        found: JournalId,
    },
    /// The journal cannot take a sector.
    #[error(
        "the journal takes records of {payload_max} bytes, too few for a volume; give it a larger log or window"
    )]
    SmallJournal {
        /// Bytes of its largest payload.
        payload_max: usize,
    },
    /// The journal ends before what the image has.
    #[error(
        "the image has been written up to LSN {applying} and the journal ends at {stable}: it lost its end, or is an older copy; put the right one back, or restore the volume"
    )]
    JournalBehind {
        /// What the image may have.
        applying: Lsn,
        /// Where the journal ends.
        stable: Lsn,
    },
    /// A record of the journal makes no sense.
    #[error(
        "the record at {lsn} is not of this volume: {cause}; files of two volumes were mixed: put the right ones back"
    )]
    Record {
        /// Where it is.
        lsn: Lsn,
        /// What is wrong with it.
        cause: VolumeDecodeError,
    },
    /// Applying the journal to the image failed. The journal keeps every record.
    #[error("recovery: {0}")]
    Apply(ApplyError),
}

/// Why a stage did not get into the image. The journal and the stage keep all of it: the next attempt begins
/// anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// A file failed.
    #[error("{file} failed: {cause}")]
    File {
        /// Which.
        file: FileKind,
        /// What the system said.
        cause: IoError,
    },
    /// The journal could not be read or trimmed.
    #[error("{0}")]
    Log(LogError),
    /// The journal's disk did not take the stage's records.
    #[error("{0}")]
    Wait(WaitError),
    /// A part of a block was written, and the rest is only at the data lender, of which nothing came in time.
    #[error(
        "the rest of block {block} is only at the data lender, which cannot be reached; start it, or mend the way to it"
    )]
    Missing {
        /// The block, counted in 4096 bytes.
        block: u64,
    },
}

/// Why a data lender's copy is not brought up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskResyncError {
    /// The volume was opened without a dirty map.
    #[error("the volume was opened without a data lender; open it with one")]
    NoMap,
    /// The volume itself is being restored.
    #[error(
        "the volume does not have all its blocks yet, so it cannot give them to another copy; let the restoring end first"
    )]
    Restoring,
    /// A file or the journal failed.
    #[error("{0}")]
    Apply(#[from] ApplyError),
}

/// Why records of the journal were not taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// The journal could not be read.
    #[error("{0}")]
    Log(LogError),
    /// What was taken in did not get into the image.
    #[error("{0}")]
    Apply(ApplyError),
    /// A record of the journal makes no sense. Nothing behind it can be taken in.
    #[error("the record at {lsn} is not of this volume: {cause}")]
    Record {
        /// Where it is.
        lsn: Lsn,
        /// What is wrong with it.
        cause: VolumeDecodeError,
    },
}

/// Why a volume did not grow. It is as large as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskGrowError {
    /// No size for it.
    #[error(
        "a volume of {asked} bytes is out of bounds; choose a multiple of 4096, up to {VOLUME_BYTES_MAX}"
    )]
    Size {
        /// Bytes asked for.
        asked: u64,
    },
    /// A volume never shrinks.
    #[error("the volume has {bytes} bytes and cannot shrink to {asked}")]
    Shrink {
        /// Bytes it has.
        bytes: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// A file failed.
    #[error("{file} failed: {cause}; make space or mend the disk, then try again")]
    File {
        /// Which.
        file: FileKind,
        /// What the system said.
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
                why: "its journal's disk failed; mend the disk and open the volume again to recover",
            },
            AppendError::Closed => DeviceError::Closed,
            // Records are cut to what the journal takes, and room is made before: what is left is a log of no
            // use.
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
