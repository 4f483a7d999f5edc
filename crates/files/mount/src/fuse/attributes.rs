//! Attributes, times and errors as the kernel expects them.

use std::time::{SystemTime, UNIX_EPOCH};

use netram_files::{ChangeError, CheckpointError, DirectoryEntry, FileTime, InodeId, InodeKind, NameError};
use netram_fuse::{FuseAttributes, FuseTime, NewTime, error_number};
use netram_proto::port::IoError;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

/// Permission bits of a mode.
pub(super) const PERMISSIONS: u32 = 0o7777;

pub(super) fn entry_at(directory: u64, name: &[u8]) -> DirectoryEntry<'_> {
    DirectoryEntry {
        directory: InodeId(directory),
        name,
    }
}

/// An inode's type, as in stat(2).
pub(super) fn type_mode(kind: InodeKind) -> u32 {
    let kind = match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
    };
    kind.as_raw_mode()
}

pub(super) fn attributes(node: InodeId, kind: InodeKind, there: &Stat) -> FuseAttributes {
    FuseAttributes {
        node: node.0,
        bytes: there.st_size.cast_unsigned(),
        units: there.st_blocks.cast_unsigned(),
        accessed: time(there.st_atime, there.st_atime_nsec),
        modified: time(there.st_mtime, there.st_mtime_nsec),
        changed: time(there.st_ctime, there.st_ctime_nsec),
        mode: type_mode(kind) | there.st_mode & PERMISSIONS,
        links: u32::try_from(there.st_nlink).unwrap_or(u32::MAX),
        user: there.st_uid,
        group: there.st_gid,
        block_bytes: u32::try_from(there.st_blksize).unwrap_or(4096),
    }
}

#[allow(
    clippy::unnecessary_fallible_conversions,
    reason = "the width of the fields depends on the architecture"
)]
fn time(s: impl TryInto<i64>, ns: impl TryInto<u32>) -> FuseTime {
    FuseTime {
        s: s.try_into().unwrap_or(0),
        ns: ns.try_into().unwrap_or(0),
    }
}

pub(super) fn fuse_time(time: FileTime) -> FuseTime {
    FuseTime {
        s: time.s,
        ns: time.ns,
    }
}

pub(super) fn file_time(time: NewTime) -> FileTime {
    match time {
        NewTime::At(FuseTime { s, ns }) => FileTime { s, ns },
        NewTime::Now => {
            // A clock before 1970 is not set.
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            FileTime {
                s: since.as_secs().cast_signed(),
                ns: since.subsec_nanos(),
            }
        }
    }
}

/// Error code for the program. The reason of a journal or checkpoint failure goes to netram's own log.
pub(super) fn errno(error: &ChangeError) -> Errno {
    match error {
        ChangeError::Name(name) => match name {
            NameError::Missing => Errno::NOENT,
            NameError::Exists => Errno::EXIST,
            NameError::NotDirectory => Errno::NOTDIR,
            NameError::IsDirectory => Errno::ISDIR,
            NameError::NotEmpty => Errno::NOTEMPTY,
            NameError::Loop | NameError::Reserved => Errno::INVAL,
            NameError::TooLong => Errno::NAMETOOLONG,
            NameError::TooMany => Errno::NOSPC,
        },
        ChangeError::Disk(error) => disk_errno(*error),
        ChangeError::Append(error) => {
            tracing::error!(%error, "a change could not be recorded: the journal accepts no records");
            Errno::IO
        }
        ChangeError::Wait(error) => {
            tracing::error!(%error, "a record is not known to be held: a crash may lose it");
            Errno::IO
        }
        // The full disk is the one with the journal's directory, not the backing disk.
        ChangeError::Full(CheckpointError::CatalogIo(error)) => disk_errno(*error),
        ChangeError::Full(error) => {
            tracing::error!(%error, "a change was refused: the journal is full and a checkpoint cannot empty it");
            Errno::IO
        }
        ChangeError::Failed(error) => {
            tracing::error!(%error, "a change was refused: an earlier checkpoint failed");
            Errno::IO
        }
    }
}

pub(super) fn disk_errno(error: IoError) -> Errno {
    error_number(error.errno)
}
