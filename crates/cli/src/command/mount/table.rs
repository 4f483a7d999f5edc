//! The kernel's table of mounts, and what in it is netram's.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::record::MountRecord;
use crate::command::volume::registry;

/// Source of directories on a journal in the kernel's table.
const SOURCE: &[u8] = b"netram";

/// A directory that netram has mounted.
#[derive(Debug)]
pub(super) struct MountedDirectory {
    pub(super) dir: PathBuf,
    pub(super) on: MountBase,
}

/// The storage of a mounted directory.
#[derive(Debug)]
pub(super) enum MountBase {
    /// A journal; `None` if another user mounted it, or the process that did was killed.
    Journal(Option<PathBuf>),
    /// A volume, by its device.
    Volume {
        /// The volume's directory.
        volume: PathBuf,
        /// The volume's device.
        device: PathBuf,
    },
}

/// Returns everything that netram has mounted on this machine.
pub(super) fn mounted() -> Result<Vec<MountedDirectory>> {
    let table = std::fs::read("/proc/self/mountinfo").context("reading the kernel's table of mounts")?;
    // Other users may not read it; they see no volumes then.
    let volumes = registry().entries().unwrap_or_default();
    let mut found = Vec::new();
    for line in table.split(|byte| *byte == b'\n') {
        let Some((dir, kind, source)) = fields(line) else {
            continue;
        };
        if kind.starts_with(b"fuse") && source == SOURCE {
            let on = MountBase::Journal(MountRecord::journal_of(&dir));
            found.push(MountedDirectory { dir, on });
            continue;
        }
        let source = path(source);
        let volume = volumes
            .iter()
            .find(|entry| entry.alive && (entry.record.device == source || entry.record.link == source));
        if let Some(entry) = volume {
            let on = MountBase::Volume {
                volume: entry.record.volume.clone(),
                device: entry.record.device.clone(),
            };
            found.push(MountedDirectory { dir, on });
        }
    }
    Ok(found)
}

/// Returns a line's directory, kind of file system, and source.
fn fields(line: &[u8]) -> Option<(PathBuf, &[u8], &[u8])> {
    let mut fields = line.split(|byte| *byte == b' ');
    let dir = path(fields.nth(4)?);
    // The number of fields before the dash varies.
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    Some((dir, behind.next()?, behind.next()?))
}

/// Returns a path as the kernel writes it in the table, where `\040` is a space.
fn path(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let digits = behind
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (first, code) {
            (b'\\', Some(code)) => {
                bytes.push(code);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Returns a directory's absolute path as the kernel has it. A mount that does not answer cannot be resolved
/// itself, so only its parent is.
pub(super) fn resolved(dir: &Path) -> Result<PathBuf> {
    if let Ok(dir) = dir.canonicalize() {
        return Ok(dir);
    }
    let whole = std::path::absolute(dir)?;
    Ok(
        match (whole.parent().map(Path::canonicalize), whole.file_name()) {
            (Some(Ok(parent)), Some(name)) if !name.as_bytes().is_empty() => parent.join(name),
            _ => whole,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_kernels_table_are_read_with_their_spaces() {
        let line = b"41 30 0:39 / /srv/my\\040log rw,nosuid,nodev shared:20 - fuse netram rw,user_id=0";
        let (dir, kind, source) = fields(line).unwrap();
        assert_eq!(dir, Path::new("/srv/my log"));
        assert_eq!((kind, source), (&b"fuse"[..], SOURCE));
        let plain = b"41 30 8:1 / / rw - ext4 /dev/sda1 rw";
        assert_eq!(fields(plain).unwrap().0, Path::new("/"));
        assert!(fields(b"").is_none());
    }
}
