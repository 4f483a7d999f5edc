//! The file behind a store: in memory, private, locked, and reserved in full.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, fstatfs, seek};
use rustix::io::Errno;

use crate::error::StoreError;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58F6;

/// Opens the file, for this user only, and locks it for this process only.
pub(crate) fn open_locked(path: &Path) -> Result<File, StoreError> {
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(path)
            .map_err(failed(path, "open"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(Errno::AGAIN) => {
                return Err(StoreError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(errno) => return Err(failed(path, "lock")(errno.into())),
        }
        let ours = file.metadata().map_err(failed(path, "inspect"))?;
        let mode = ours.mode() & 0o7777;
        if ours.uid() != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 || !ours.is_file() {
            return Err(StoreError::NotPrivate {
                path: path.to_owned(),
                mode,
            });
        }
        // A lender that ended while we opened may have removed the file that we now hold.
        match std::fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            _ => continue,
        }
    }
}

/// Whether the file lies in memory.
pub(crate) fn is_memory(file: &File) -> io::Result<bool> {
    let kind = kind(file)?;
    Ok(kind == TMPFS_MAGIC || kind == HUGETLBFS_MAGIC)
}

/// Whether the file lies in huge pages that were set aside for such: nobody else has anything of one that is free.
pub(crate) fn is_set_aside(file: &File) -> io::Result<bool> {
    Ok(kind(file)? == HUGETLBFS_MAGIC)
}

fn kind(file: &File) -> io::Result<u64> {
    Ok(fstatfs(file)?.f_type as u64 & u64::from(u32::MAX))
}

/// Whether there is memory behind each byte of the file; if not, some was given back.
pub(crate) fn is_whole(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    match seek(file, SeekFrom::Hole(0)) {
        Ok(hole) => Ok(hole >= length),
        // It does not say.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether there is no memory behind some of these bytes.
pub(crate) fn has_hole(file: &File, at: u64, length: u64) -> io::Result<bool> {
    Ok(seek(file, SeekFrom::Hole(at))? < at + length)
}

/// Gives the memory behind these bytes back to the machine; they are zeros then, and nobody may touch them until they are [`filled`](fill) again.
pub(crate) fn hollow(file: &File, at: u64, length: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, at, length)?)
}

/// Takes memory for these bytes again.
pub(crate) fn fill(file: &File, at: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), at, length)?)
}

/// Empties the file and reserves `asked` bytes of memory for it, all zero.
pub(crate) fn reserve(file: &File, asked: u64, path: &Path) -> Result<(), StoreError> {
    file.set_len(0).map_err(failed(path, "empty"))?;
    // The kernel would rather kill somebody than refuse memory that it has promised; ask before it does.
    let free = free_bytes(file).map_err(failed(path, "measure free memory for"))?;
    if asked > free {
        return Err(StoreError::NoMemory { asked, free });
    }
    match fallocate(file, FallocateFlags::empty(), 0, asked) {
        Ok(()) => (),
        Err(Errno::NOSPC | Errno::NOMEM) => {
            // What was reserved before the refusal goes back at once.
            file.set_len(0).map_err(failed(path, "empty"))?;
            return Err(StoreError::NoMemory { asked, free });
        }
        Err(errno) => return Err(failed(path, "reserve memory for")(errno.into())),
    }
    Ok(())
}

/// Bytes that can be reserved: what the file system allows and what the machine has.
pub(crate) fn free_bytes(file: &File) -> io::Result<u64> {
    let system = fstatfs(file)?;
    let allowed = (system.f_bavail as u64).saturating_mul(system.f_bsize as u64);
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let available = bytes_of(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    Ok(allowed.min(available).min(group_bytes().unwrap_or(u64::MAX)))
}

/// What a line of /proc/meminfo says, in bytes.
pub(crate) fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Bytes that this process's control group may still take, if it is bounded: a container or a service is killed
/// beyond that, however much the machine has.
fn group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let number = |name: &str| {
        let path = Path::new("/sys/fs/cgroup").join(group).join(name);
        std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

/// Names the step and the file that an error is about.
pub(crate) fn failed<'a>(path: &'a Path, step: &'static str) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::Failed {
        step,
        path: path.to_owned(),
        source,
    }
}
