//! What can go wrong: one enum an operation, one variant a reaction.

use netram_proto::port::IoError;

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
    /// The disk under the image is full, and so is the room that bridges that. Nothing was lost: make space, and writes
    /// go on.
    #[error("the disk under the volume is full; make space on it, and writes go on")]
    NoSpace,
    /// The volume takes no writes any more, and still reads.
    #[error("the volume is read-only: {why}")]
    ReadOnly {
        /// What happened to it, and what to do.
        why: &'static str,
    },
    /// The bytes on the disk are not those that were written, and nobody else had them.
    #[error(
        "block {block} of the image does not match its checksum; restore it from a copy, or write it anew"
    )]
    Corrupt {
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
            DeviceError::Corrupt { .. } => EIO,
            DeviceError::Fenced | DeviceError::Closed => ESHUTDOWN,
            DeviceError::Io(error) => error.errno,
        }
    }
}
