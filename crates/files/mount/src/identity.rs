//! Kind and identity of an inode, by which it is known again.

use std::os::fd::BorrowedFd;

use netram_files::{InodeIdentity, InodeKind};
use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, statx};
use rustix::io::Errno;

use crate::open_directory::system_path;

/// Kind and identity of what a name in a directory is.
pub(crate) fn identify(
    directory: BorrowedFd<'_>,
    path: &[u8],
) -> Result<(Option<InodeKind>, InodeIdentity), Errno> {
    let there = statx(
        directory,
        system_path(path),
        AtFlags::SYMLINK_NOFOLLOW,
        IDENTIFYING,
    )?;
    Ok(identity_of(&there))
}

/// Kind and identity of an open file.
pub(crate) fn identify_open(file: BorrowedFd<'_>) -> Result<(Option<InodeKind>, InodeIdentity), Errno> {
    let there = statx(file, c"", AtFlags::EMPTY_PATH, IDENTIFYING)?;
    Ok(identity_of(&there))
}

const IDENTIFYING: StatxFlags = StatxFlags::TYPE.union(StatxFlags::INO).union(StatxFlags::BTIME);

fn identity_of(there: &Statx) -> (Option<InodeKind>, InodeIdentity) {
    let kind = match FileType::from_raw_mode(there.stx_mode.into()) {
        FileType::RegularFile => Some(InodeKind::File),
        FileType::Directory => Some(InodeKind::Directory),
        FileType::Symlink => Some(InodeKind::Symlink),
        _ => None,
    };
    let born = there.stx_btime;
    let made_ns = match StatxFlags::from_bits_retain(there.stx_mask).contains(StatxFlags::BTIME) {
        true => born.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000) + u64::from(born.tv_nsec),
        false => 0,
    };
    let identity = InodeIdentity {
        inode: there.stx_ino,
        made_ns,
    };
    (kind, identity)
}
