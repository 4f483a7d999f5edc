//! The place of a mount: the kernel's mount table, and unmounting.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netram_fuse::FUSERMOUNT;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::error::MountError;
use crate::place::unmount_at;
use crate::users::users_of_mount;

/// Source name of netram's mounts in the kernel's mount table.
pub(crate) const SOURCE: &str = "netram";

/// Unmounts a directory. The process that serves it then gives it back. `false`: that process is gone, and
/// the directory must be recovered.
///
/// # Errors
///
/// [`MountError::NotMounted`], or [`MountError::Unmount`] if the system refuses.
pub fn unmount(dir: &Path) -> Result<bool, MountError> {
    let dir = resolve(dir)?;
    if !is_mounted(&dir) {
        return Err(MountError::NotMounted { dir });
    }
    if is_unresponsive(&dir) {
        detach(&dir)?;
        return Ok(false);
    }
    match unmount_at(&dir, UnmountFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::PERM) => by_helper(&dir, &["-u"]).map(|()| true),
        Err(errno) => Err(match (errno, users_of_mount(&dir).into_iter().next()) {
            (Errno::BUSY, Some(user)) => MountError::InUse { dir, user },
            _ => MountError::Unmount {
                dir,
                source: errno.into(),
            },
        }),
    }
}

/// Unmounts through `fusermount3`, as a user other than root must.
fn by_helper(dir: &Path, flags: &[&str]) -> Result<(), MountError> {
    let ran = Command::new(FUSERMOUNT).args(flags).arg("--").arg(dir).output();
    let said = match ran {
        Ok(ran) if ran.status.success() => return Ok(()),
        Ok(ran) => io::Error::other(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
        Err(error) => error,
    };
    let dir = dir.to_path_buf();
    match users_of_mount(&dir).into_iter().next() {
        Some(user) => Err(MountError::InUse { dir, user }),
        None => Err(MountError::Unmount { dir, source: said }),
    }
}

/// Whether netram has mounted a directory there.
pub fn is_mounted(dir: &Path) -> bool {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    table
        .split(|byte| *byte == b'\n')
        .any(|line| is_mount_at(line, dir))
}

fn is_mount_at(line: &[u8], dir: &Path) -> bool {
    let mut fields = line.split(|byte| *byte == b' ');
    let at = fields.nth(4);
    // The number of fields before the dash varies.
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    // `fuse`, or `fuse.netram` if `fusermount3` made the mount.
    let ours = behind.next().is_some_and(|kind| kind.starts_with(b"fuse"))
        && behind.next() == Some(SOURCE.as_bytes());
    ours && at == Some(&escaped(dir)[..])
}

/// Escapes a path as the mount table does: space, tab, newline and backslash become `\040` and so on.
fn escaped(path: &Path) -> Vec<u8> {
    let mut to = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => to.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            byte => to.push(*byte),
        }
    }
    to
}

/// Whether the serving process is gone. `statvfs` is never cached, unlike attributes.
pub(crate) fn is_unresponsive(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_err_and(|errno| errno == Errno::NOTCONN)
}

/// Takes a mount off although it cannot be accessed.
pub(crate) fn detach(dir: &Path) -> Result<(), MountError> {
    match unmount_at(dir, UnmountFlags::DETACH) {
        Err(Errno::PERM) => by_helper(dir, &["-u", "-z"]),
        done => done.map_err(|errno| MountError::Unmount {
            dir: dir.to_path_buf(),
            source: errno.into(),
        }),
    }
}

/// Absolute path of the directory without symbolic links. The last component is not followed, since a mount
/// whose process is gone cannot be accessed.
pub(crate) fn resolve(dir: &Path) -> Result<PathBuf, MountError> {
    let failed = |source| MountError::NoDirectory {
        dir: dir.to_path_buf(),
        source,
    };
    match dir.canonicalize() {
        Ok(dir) if dir.is_dir() || is_mounted(&dir) => Ok(dir),
        Ok(_) => Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(error) => {
            let whole = std::path::absolute(dir).map_err(failed)?;
            let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
                return Err(failed(error));
            };
            let there = parent.canonicalize().map_err(failed)?.join(name);
            match is_mounted(&there) {
                true => Ok(there),
                false => Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_recognized_by_source_and_path() {
        let line =
            b"41 30 0:39 / /srv/my\\040log rw,nosuid,nodev,noatime shared:20 - fuse netram rw,user_id=0";
        assert!(is_mount_at(line, Path::new("/srv/my log")));
        assert!(!is_mount_at(line, Path::new("/srv/my")));
        let by_helper = b"41 30 0:39 / /a rw - fuse.netram netram rw";
        assert!(is_mount_at(by_helper, Path::new("/a")));
        for other in [
            &b"41 30 0:39 / /a rw - fuse sshfs rw"[..],
            b"41 30 0:39 / /a rw - ext4 netram rw",
            b"41 30 0:39 / /a rw",
            b"",
        ] {
            assert!(!is_mount_at(other, Path::new("/a")));
        }
    }
}
