//! File operations of programs, on a mount and beside it: the results are equal, now and after a crash.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, FallocateFlags, FlockOperation, RenameFlags, XattrFlags};

use crate::common::finish;
use crate::mount::{MountFixture, cannot_mount};

/// Operations of databases on their files, and more.
fn play(dir: &Path) {
    let path = |name: &str| dir.join(name);
    fs::write(path("old"), b"what was there").unwrap();
    fs::create_dir_all(path("wal/archive_status")).unwrap();
    // A segment, preallocated, filled, recycled under another name.
    let mut segment = File::create(path("wal/000001")).unwrap();
    rustix::fs::fallocate(&segment, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    for page in 0..40_u8 {
        segment.write_all(&[page; 8192]).unwrap();
        segment.sync_data().unwrap();
    }
    drop(segment);
    fs::rename(path("wal/000001"), path("wal/000004")).unwrap();
    fs::File::open(path("wal")).unwrap().sync_all().unwrap();
    fs::write(path("wal/archive_status/000001.ready"), b"").unwrap();
    fs::rename(
        path("wal/archive_status/000001.ready"),
        path("wal/archive_status/000001.done"),
    )
    .unwrap();
    // A rollback journal: made, synced, deleted.
    fs::write(path("journal"), [7; 5000]).unwrap();
    File::open(path("journal")).unwrap().sync_all().unwrap();
    fs::remove_file(path("journal")).unwrap();
    // Written by O_DSYNC, at places, and shortened.
    let mut dsync = OpenOptions::new();
    dsync.create(true).truncate(true).write(true).read(true);
    dsync.custom_flags((rustix::fs::OFlags::DSYNC.bits()).cast_signed());
    let file = dsync.open(path("placed")).unwrap();
    file.write_all_at(b"far", 1_000_000).unwrap();
    file.write_all_at(b"near", 3).unwrap();
    file.set_len(999_999).unwrap();
    file.write_all_at(b"behind the end", 1_000_100).unwrap();
    // Holes and zeros.
    let holes = File::create(path("holes")).unwrap();
    holes.write_all_at(&vec![9; 64 << 10], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&holes, punch, 4096, 8192).unwrap();
    rustix::fs::fallocate(&holes, FallocateFlags::ZERO_RANGE, 60 << 10, 16 << 10).unwrap();
    play_with_names(dir);
    // An open file whose name was removed can still be used.
    let mut nameless = OpenOptions::new();
    let mut nameless = nameless
        .create_new(true)
        .read(true)
        .write(true)
        .open(path("gone"))
        .unwrap();
    fs::remove_file(path("gone")).unwrap();
    nameless.write_all(b"still here").unwrap();
    nameless.sync_all().unwrap();
    nameless.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(std::io::read_to_string(nameless).unwrap(), "still here");
    for file in ["old", "placed", "holes", "a", "b", "renamed/inside"] {
        File::open(path(file)).unwrap().sync_all().unwrap();
    }
}

/// Links, renames and attributes, as databases use them.
fn play_with_names(dir: &Path) {
    let path = |name: &str| dir.join(name);
    fs::hard_link(path("holes"), path("second name")).unwrap();
    symlink("wal/000004", path("current")).unwrap();
    fs::write(path("a"), b"a").unwrap();
    fs::write(path("b"), b"b").unwrap();
    rustix::fs::renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::EXCHANGE).unwrap();
    let refused = rustix::fs::renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    fs::create_dir(path("directory")).unwrap();
    fs::write(path("directory/inside"), b"in").unwrap();
    fs::rename(path("directory"), path("renamed")).unwrap();
    assert!(fs::remove_dir(path("renamed")).is_err(), "it is not empty");
    fs::set_permissions(path("a"), fs::Permissions::from_mode(0o640)).unwrap();
    chown(path("a"), Some(7), Some(8)).unwrap();
    rustix::fs::setxattr(path("a"), "user.colour", b"blue", XattrFlags::empty()).unwrap();
    File::open(path("b"))
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000))
        .unwrap();
}

/// A file's type and permissions, owner, names, time if it was set, and what is in it.
type Known = (u32, (u32, u32), u64, Option<i64>, Vec<u8>);

fn known(dir: &Path) -> BTreeMap<OsString, Known> {
    let mut all = BTreeMap::new();
    let mut directories = vec![dir.to_path_buf()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let there = path.symlink_metadata().unwrap();
            let bytes = match there.file_type() {
                kind if kind.is_dir() => {
                    directories.push(path.clone());
                    Vec::new()
                }
                kind if kind.is_symlink() => fs::read_link(&path)
                    .unwrap()
                    .into_os_string()
                    .into_encoded_bytes(),
                _ => fs::read(&path).unwrap(),
            };
            let links = if there.is_dir() { 0 } else { there.nlink() };
            let time = (there.mtime() == 1_000_000_000).then_some(there.mtime());
            let name = path.strip_prefix(dir).unwrap().as_os_str().to_owned();
            all.insert(
                name,
                (there.mode(), (there.uid(), there.gid()), links, time, bytes),
            );
        }
    }
    all
}

#[test]
fn files_on_a_mount_equal_plain_ones_and_survive_a_killed_server() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("files", 2, "8MiB");
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    play(beside.path());
    play(&mounted.dir());
    let expected = known(beside.path());
    assert_eq!(expected.len(), 13);
    let same = |dir: &Path| {
        let found = known(dir);
        assert_eq!(
            found.keys().collect::<Vec<_>>(),
            expected.keys().collect::<Vec<_>>()
        );
        for (name, file) in &expected {
            assert!(&found[name] == file, "{name:?}: {:?}", found[name].0);
        }
        let mut colour = [0; 8];
        assert_eq!(
            rustix::fs::getxattr(dir.join("a"), "user.colour", &mut colour[..]),
            Ok(4)
        );
    };
    same(&mounted.dir());
    for _ in 0..2 {
        mounted.kill();
        mounted.mount();
        same(&mounted.dir());
    }
    assert_eq!(mounted.unmount().code, 0);
    same(&mounted.dir());
}

#[test]
fn writes_of_one_process_are_seen_mapped_and_locked_by_others() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("shared", 1, "8MiB");
    let path = mounted.dir().join("shared");
    fs::write(&path, vec![b'.'; 100_000]).unwrap();
    let script = r"
import fcntl, mmap, os, sys
file = open(sys.argv[1], 'r+b')
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
    sys.exit('nobody had it locked')
except BlockingIOError:
    pass
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)
seen = mmap.mmap(file.fileno(), 0)
print(seen[90_000:90_005].decode(), flush=True)
sys.stdin.readline()
print(seen[90_000:90_005].decode())
seen[5:8] = b'map'
seen.flush()
os.fsync(file.fileno())
";
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut half = Command::new("python3");
    half.args(["-c", script]).arg(&path);
    // The lock is of the whole file: another process has none of it.
    let ran = finish(&mut half);
    assert!(
        ran.err.contains("Resource temporarily unavailable"),
        "{}",
        ran.err
    );
    rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    let script = script.replace("    sys.exit('nobody had it locked')\n", "    pass\n");
    file.write_all_at(b"first", 90_000).unwrap();
    let mut child = Command::new("python3")
        .args(["-c", &script])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    file.write_all_at(b"later", 90_000).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "later");
    assert!(child.wait().unwrap().success());
    let mut seen = [0; 3];
    file.read_exact_at(&mut seen, 5).unwrap();
    assert_eq!(&seen, b"map");
    // What was written by way of the map is as safe as anything.
    drop(file);
    mounted.kill();
    mounted.mount();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(
        (&bytes[5..8], &bytes[90_000..90_005]),
        (&b"map"[..], &b"later"[..])
    );
}
