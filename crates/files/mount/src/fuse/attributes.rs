//! Attributes, times and errors as the kernel expects them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use netram_files::{ChangeError, CheckpointError, FileTime, InodeId, InodeKind, NameError};
use netram_proto::port::IoError;
use rustix::fs::Stat;

pub(super) fn file_type(kind: InodeKind) -> FileType {
    match kind {
        InodeKind::File => FileType::RegularFile,
        InodeKind::Directory => FileType::Directory,
        InodeKind::Symlink => FileType::Symlink,
    }
}

pub(super) fn attributes(node: InodeId, kind: InodeKind, there: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(node.0),
        size: there.st_size.cast_unsigned(),
        blocks: there.st_blocks.cast_unsigned(),
        atime: time(there.st_atime, there.st_atime_nsec),
        mtime: time(there.st_mtime, there.st_mtime_nsec),
        ctime: time(there.st_ctime, there.st_ctime_nsec),
        crtime: UNIX_EPOCH,
        kind: file_type(kind),
        perm: (there.st_mode & 0o7777) as u16,
        nlink: u32::try_from(there.st_nlink).unwrap_or(u32::MAX),
        uid: there.st_uid,
        gid: there.st_gid,
        rdev: 0,
        blksize: u32::try_from(there.st_blksize).unwrap_or(4096),
        flags: 0,
    }
}

#[allow(
    clippy::unnecessary_fallible_conversions,
    reason = "the width of the fields depends on the architecture"
)]
pub(super) fn time(s: impl TryInto<i64>, ns: impl TryInto<u32>) -> SystemTime {
    let (s, ns) = (s.try_into().unwrap_or(0), ns.try_into().unwrap_or(0));
    let whole = Duration::from_secs(s.unsigned_abs());
    let whole = match s < 0 {
        true => UNIX_EPOCH.checked_sub(whole),
        false => UNIX_EPOCH.checked_add(whole),
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(ns.into())))
        .unwrap_or(UNIX_EPOCH)
}

pub(super) fn file_time(time: TimeOrNow) -> FileTime {
    let time = match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => FileTime {
            s: since.as_secs().cast_signed(),
            ns: since.subsec_nanos(),
        },
        Err(before) => {
            // Before 1970 the kernel's seconds are negative and its nanoseconds count upwards. `fuser` takes
            // the absolute value of each and sums them into a distance. Undoing that for each part restores
            // the exact time.
            let before = before.duration();
            FileTime {
                s: -before.as_secs().cast_signed(),
                ns: before.subsec_nanos(),
            }
        }
    }
}

/// Error code for the program. The reason of a journal or checkpoint failure goes to netram's own log.
pub(super) fn errno(error: &ChangeError) -> Errno {
    match error {
        ChangeError::Name(name) => match name {
            NameError::Missing => Errno::ENOENT,
            NameError::Exists => Errno::EEXIST,
            NameError::NotDirectory => Errno::ENOTDIR,
            NameError::IsDirectory => Errno::EISDIR,
            NameError::NotEmpty => Errno::ENOTEMPTY,
            NameError::Loop | NameError::Reserved => Errno::EINVAL,
            NameError::TooLong => Errno::ENAMETOOLONG,
            NameError::TooMany => Errno::ENOSPC,
        },
        ChangeError::Disk(error) => disk_errno(*error),
        ChangeError::Append(error) => {
            tracing::error!(%error, "a change could not be recorded: the journal accepts no records");
            Errno::EIO
        }
        ChangeError::Wait(error) => {
            tracing::error!(%error, "a record is not known to be held: a crash may lose it");
            Errno::EIO
        }
        // The full disk is the one with the journal's directory, not the backing disk.
        ChangeError::Full(CheckpointError::CatalogIo(error)) => disk_errno(*error),
        ChangeError::Full(error) => {
            tracing::error!(%error, "a change was refused: the journal is full and a checkpoint cannot empty it");
            Errno::EIO
        }
        ChangeError::Failed(error) => {
            tracing::error!(%error, "a change was refused: an earlier checkpoint failed");
            Errno::EIO
        }
    }
}

pub(super) fn disk_errno(error: IoError) -> Errno {
    Errno::from_i32(error.errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_survive_fusers_conversion() {
        // The kernel's -2 s and 700,000,000 ns, which is 1.3 s before 1970.
        let before = UNIX_EPOCH - Duration::new(2, 700_000_000);
        assert_eq!(
            file_time(TimeOrNow::SpecificTime(before)),
            FileTime {
                s: -2,
                ns: 700_000_000
            }
        );
        assert_eq!(
            time(-2_i64, 700_000_000_i64),
            UNIX_EPOCH - Duration::from_millis(1300)
        );
        let after = UNIX_EPOCH + Duration::new(3, 7);
        assert_eq!(
            file_time(TimeOrNow::SpecificTime(after)),
            FileTime { s: 3, ns: 7 }
        );
        assert_eq!(time(3_i64, 7_i64), after);
    }
}
