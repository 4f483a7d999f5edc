//! The file behind a store: in memory, private, locked, and fully reserved.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom, fallocate, flock, fstatfs, seek};
use rustix::io::Errno;

use crate::error::WindowStoreError;
use crate::superblock::fresh_incarnation;
use crate::sys::StoreSlice;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58F6;

/// Opens the file for this user only and locks it for this process only.
pub(crate) fn open_locked(path: &Path) -> Result<File, WindowStoreError> {
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
                return Err(WindowStoreError::InUse {
                    path: path.to_owned(),
                });
            }
            Err(errno) => return Err(failed(path, "lock")(errno.into())),
        }
        let ours = file.metadata().map_err(failed(path, "inspect"))?;
        let mode = ours.mode() & 0o7777;
        if ours.uid() != rustix::process::geteuid().as_raw() || mode & 0o077 != 0 || !ours.is_file() {
            return Err(WindowStoreError::NotPrivate {
                path: path.to_owned(),
                mode,
            });
        }
        // A lender that ended in the meantime may have removed the file that was opened.
        match std::fs::symlink_metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => return Ok(file),
            _ => continue,
        }
    }
}

/// Path of the store whose default path is `wanted`, in a directory where everybody may create files.
///
/// A stranger who takes the name first keeps no lender from starting: their file is left alone, and the store
/// gets a name that nobody can know before. The next lender finds it by its owner, also when the stranger's
/// file is gone.
pub(crate) fn free_path(wanted: &Path) -> PathBuf {
    let stem = wanted.file_stem().unwrap_or_default();
    let all = fs::read_dir(wanted.parent().unwrap_or(Path::new("/")));
    let substitutes = { all.into_iter().flatten().flatten() }
        .map(|entry| entry.path())
        .filter(|path| is_substitute(path, stem))
        .filter(|path| fs::symlink_metadata(path).is_ok_and(|found| is_own(&found)));
    if let Some(own) = substitutes.min() {
        return own;
    }
    if fs::symlink_metadata(wanted).map_or(true, |found| is_own(&found)) {
        return wanted.to_owned();
    }
    let Ok(number) = fresh_incarnation() else {
        return wanted.to_owned();
    };
    let mut name = stem.to_owned();
    name.push(format!("+{:016x}.mem", number.0));
    let path = wanted.with_file_name(name);
    tracing::warn!(taken = %wanted.display(), store = %path.display(), "a file that is not this user's has the store's name, so the store gets another one");
    path
}

/// Whether it is a regular file of this user's, with no other name.
fn is_own(found: &Metadata) -> bool {
    found.is_file() && found.uid() == rustix::process::geteuid().as_raw() && found.nlink() == 1
}

fn is_substitute(path: &Path, stem: &OsStr) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    // No lender's name has the character.
    name.strip_prefix(stem.as_bytes())
        .is_some_and(|rest| rest.starts_with(b"+") && rest.ends_with(b".mem"))
}

/// Whether the file lies in memory.
pub(crate) fn is_memory(file: &File) -> io::Result<bool> {
    let kind = kind(file)?;
    Ok(kind == TMPFS_MAGIC || kind == HUGETLBFS_MAGIC)
}

/// Whether the file lies in preallocated huge pages (hugetlbfs), which no other program can use even if they
/// are free.
pub(crate) fn is_set_aside(file: &File) -> io::Result<bool> {
    Ok(kind(file)? == HUGETLBFS_MAGIC)
}

fn kind(file: &File) -> io::Result<u64> {
    Ok(fstatfs(file)?.f_type as u64 & u64::from(u32::MAX))
}

/// Whether memory backs every byte of the file; if not, some was released to the machine.
pub(crate) fn is_whole(file: &File) -> io::Result<bool> {
    let length = file.metadata()?.len();
    match seek(file, SeekFrom::Hole(0)) {
        Ok(hole) => Ok(hole >= length),
        // The file system does not report holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether some of these bytes have no memory behind them.
pub(crate) fn has_hole(file: &File, at: u64, length: u64) -> io::Result<bool> {
    Ok(seek(file, SeekFrom::Hole(at))? < at + length)
}

/// Releases the memory behind these bytes to the machine. They read as zeros and must not be touched until
/// [`fill`] reserves memory again.
pub(crate) fn punch_hole(file: &File, at: u64, length: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, at, length)?)
}

/// Reserves memory for these bytes again.
pub(crate) fn fill(file: &File, at: u64, length: u64) -> io::Result<()> {
    Ok(fallocate(file, FallocateFlags::empty(), at, length)?)
}

/// The memory behind a new store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    /// Length of the file.
    pub(crate) length: u64,
    /// Bytes for which the machine must have memory.
    pub(crate) needed: u64,
    /// Bytes from the start of the file that are reserved now.
    pub(crate) now: u64,
    /// Whether huge pages are requested.
    pub(crate) huge: bool,
}

/// Empties the file, gives it its length, and reserves zeroed memory for a part of it.
pub(crate) fn reserve(file: &File, wish: Reservation, path: &Path) -> Result<(), WindowStoreError> {
    let Reservation {
        length,
        needed,
        now,
        huge,
    } = wish;
    file.set_len(0).map_err(failed(path, "empty"))?;
    // The kernel would kill a process rather than refuse memory that it has promised, so the free memory is
    // checked first.
    let free = free_bytes(file).map_err(failed(path, "measure free memory for"))?;
    let total = total_bytes(file).map_err(failed(path, "measure memory for"))?;
    if needed > free || length > total {
        let asked = if needed > free { needed } else { length };
        return Err(WindowStoreError::NoMemory { asked, free });
    }
    file.set_len(length).map_err(failed(path, "extend"))?;
    if huge {
        // Before memory is reserved: the kernel then takes huge pages for what is touched, where it is told
        // to heed advice. What it could not populate is reserved below, or refused.
        let mut touched = StoreSlice::map(file, now as usize, false).map_err(failed(path, "map"))?;
        if touched.advise_huge_pages().is_ok() {
            touched.touch();
        }
    }
    match fallocate(file, FallocateFlags::empty(), 0, now) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::NOMEM) => {
            // The part that was reserved before the refusal is released at once.
            file.set_len(0).map_err(failed(path, "empty"))?;
            Err(WindowStoreError::NoMemory { asked: now, free })
        }
        Err(errno) => Err(failed(path, "reserve memory for")(errno.into())),
    }
}

/// Bytes that could be reserved if all memory were free.
fn total_bytes(file: &File) -> io::Result<u64> {
    let system = fstatfs(file)?;
    let allowed = (system.f_blocks as u64).saturating_mul(system.f_bsize as u64);
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    Ok(allowed.min(bytes_of(&meminfo, "MemTotal:").unwrap_or(u64::MAX)))
}

/// Bytes of `file` that this process has mapped in huge pages, transparent ones or preallocated.
pub(crate) fn huge_bytes(path: &Path) -> Option<u64> {
    huge_bytes_of(&std::fs::read_to_string("/proc/self/smaps").ok()?, path)
}

fn huge_bytes_of(smaps: &str, path: &Path) -> Option<u64> {
    const HUGE: [&str; 4] = [
        "ShmemPmdMapped:",
        "FilePmdMapped:",
        "Shared_Hugetlb:",
        "Private_Hugetlb:",
    ];
    let name = path.to_str()?;
    let (mut ours, mut sum) = (false, None);
    for line in smaps.lines() {
        if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            ours = line.ends_with(name);
        } else if ours && HUGE.iter().any(|kind| line.starts_with(kind)) {
            let kind = line.split(' ').next().unwrap_or_default();
            sum = Some(sum.unwrap_or(0) + bytes_of(line, kind).unwrap_or(0));
        }
    }
    sum
}

/// Bytes that can be reserved: the lesser of what the file system allows and what the machine has.
pub(crate) fn free_bytes(file: &File) -> io::Result<u64> {
    let system = fstatfs(file)?;
    let allowed = (system.f_bavail as u64).saturating_mul(system.f_bsize as u64);
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let available = bytes_of(&meminfo, "MemAvailable:").unwrap_or(u64::MAX);
    Ok(allowed.min(available).min(group_bytes().unwrap_or(u64::MAX)))
}

/// The value of a line of /proc/meminfo, in bytes.
pub(crate) fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// Bytes that this process's control groups may still take, if a limit is set. Beyond it a container or
/// service is killed, however much memory the machine has.
fn group_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    group_bytes_of(&groups, Path::new("/sys/fs/cgroup"))
}

/// Computes the same for the groups in `groups`, the text of `/proc/self/cgroup`, of versions 1 and 2. A
/// group's limit includes its subgroups. In a container the path may be the host's; only the root is visible
/// then, which is the container's own.
fn group_bytes_of(groups: &str, root: &Path) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let (_, line) = line.split_once(':')?;
        let (controllers, group) = line.split_once(':')?;
        let (root, most, taken) = match controllers {
            "" => (root.to_owned(), "memory.max", "memory.current"),
            _ if controllers.split(',').any(|controller| controller == "memory") => (
                root.join("memory"),
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            _ => return None,
        };
        let group = Path::new(group.trim_start_matches('/'));
        let bounds = group.ancestors().filter_map(|group| {
            let number = |name: &str| {
                let text = std::fs::read_to_string(root.join(group).join(name)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            Some(number(most)?.saturating_sub(number(taken)?))
        });
        bounds.min()
    });
    left.min()
}

/// Adds the failed step and the file to an error.
pub(crate) fn failed<'a>(
    path: &'a Path,
    step: &'static str,
) -> impl FnOnce(io::Error) -> WindowStoreError + 'a {
    move |source| WindowStoreError::Failed {
        step,
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    /// A file of anybody's under the store's default name kept the lender from starting.
    #[test]
    fn a_strangers_file_keeps_no_lender_from_its_store() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("\nSKIPPED: giving files away needs root");
            return;
        }
        let shared = tempfile::tempdir().unwrap();
        let wanted = shared.path().join("netram-0-lender.mem");
        assert_eq!(free_path(&wanted), wanted);
        fs::write(&wanted, "theirs").unwrap();
        assert_eq!(free_path(&wanted), wanted, "it is ours");
        chown(&wanted, Some(12_345), None).unwrap();
        // They cannot guess the name, but they may try.
        let guessed = shared.path().join("netram-0-lender+0000000000000000.mem");
        fs::write(&guessed, "theirs").unwrap();
        chown(&guessed, Some(12_345), None).unwrap();
        let substitute = free_path(&wanted);
        assert!(substitute != wanted && substitute != guessed);
        drop(open_locked(&substitute).unwrap());
        assert_eq!(free_path(&wanted), substitute, "the next lender finds it");
        fs::remove_file(&wanted).unwrap();
        assert_eq!(free_path(&wanted), substitute, "its windows are there");
        let other = shared.path().join("netram-0-lender-2.mem");
        assert_eq!(free_path(&other), other);
    }

    fn put(root: &Path, group: &str, files: [(&str, &str); 2]) {
        let directory = root.join(group);
        std::fs::create_dir_all(&directory).unwrap();
        for (name, text) in files {
            std::fs::write(directory.join(name), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_limit_of_a_group_and_its_parents_counts() {
        let root = tempfile::tempdir().unwrap();
        let files = |most, taken| [("memory.max", most), ("memory.current", taken)];
        put(root.path(), "a/b", files("max", "10\n"));
        put(root.path(), "a", files("100\n", "30\n"));
        assert_eq!(group_bytes_of("0::/a/b\n", root.path()), Some(70));
        put(root.path(), "a/b", files("50\n", "10\n"));
        assert_eq!(group_bytes_of("0::/a/b\n", root.path()), Some(40));
        assert_eq!(group_bytes_of("0::/\n", root.path()), None);
    }

    #[test]
    fn only_the_stores_own_huge_pages_count() {
        let smaps = "7f00-7f80 rw-s 00000000 00:19 12 /dev/shm/netram-0-a.mem\n\
                     Rss:      8192 kB\nShmemPmdMapped:     4096 kB\nFilePmdMapped:         0 kB\n\
                     Shared_Hugetlb:        0 kB\nVmFlags: rd wr sh\n\
                     7f80-7fc0 rw-p 00000000 00:00 0 \nShmemPmdMapped:     2048 kB\n";
        let of = |name| huge_bytes_of(smaps, Path::new(name));
        assert_eq!(of("/dev/shm/netram-0-a.mem"), Some(4 << 20));
        assert_eq!(of("/dev/shm/netram-0-b.mem"), None);
    }

    /// The lender was killed as it started, since the limit of a version 1 group went unnoticed.
    #[test]
    fn a_limit_of_cgroup_version_1_counts() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "4096\n"),
            ("memory.usage_in_bytes", "96\n"),
        ];
        put(root.path(), "memory/box", files);
        let groups = "12:cpu,cpuacct:/\n5:memory:/box\n1:name=systemd:/\n0::/\n";
        assert_eq!(group_bytes_of(groups, root.path()), Some(4000));
        // In a container the path is the host's, and the container's own group is mounted as the root.
        let files = [
            ("memory.limit_in_bytes", "512\n"),
            ("memory.usage_in_bytes", "12\n"),
        ];
        put(root.path(), "memory", files);
        assert_eq!(group_bytes_of("5:memory:/docker/abc\n", root.path()), Some(500));
    }
}
