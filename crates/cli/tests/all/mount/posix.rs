//! POSIX and ext4 semantics of files: each case runs on a mount and beside it, with the same result.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{Dir, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::common::{finish, skipped};
use crate::mount::{MountFixture, cannot_mount, wait_until};

/// A case, which returns its result.
type Story = fn(&Path) -> String;

const STORIES: [(&str, Story); 7] = [
    ("nameless", nameless),
    ("replaced", replaced),
    ("removed", removed),
    ("long", long),
    ("rewound", rewound),
    ("ids", ids),
    ("times and holes", times_and_holes),
];

/// An open file that has lost its name is dressed as any other.
fn nameless(dir: &Path) -> String {
    let path = dir.join("nameless");
    let file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    fs::remove_file(&path).unwrap();
    dress(&file)
}

/// The same of one that another was renamed over.
fn replaced(dir: &Path) -> String {
    let (path, other) = (dir.join("replaced"), dir.join("other"));
    let file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    fs::write(&other, b"other").unwrap();
    fs::rename(&other, &path).unwrap();
    dress(&file) + &fs::read_to_string(&path).unwrap()
}

fn dress(mut file: &File) -> String {
    let mut said = Vec::new();
    said.push(format!(
        "{:?}",
        rustix::fs::fchmod(file, Mode::from_raw_mode(0o640))
    ));
    let (user, group) = (Uid::from_raw(7), Gid::from_raw(8));
    said.push(format!("{:?}", rustix::fs::fchown(file, Some(user), Some(group))));
    let time = Timespec {
        tv_sec: 1_000_000,
        tv_nsec: 5,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    said.push(format!("{:?}", rustix::fs::futimens(file, &times)));
    said.push(format!("{}", file.metadata().unwrap().mtime()));
    let set = rustix::fs::fsetxattr(file, "user.colour", b"blue", XattrFlags::empty());
    said.push(format!("{set:?}"));
    let mut value = [0; 16];
    said.push(format!(
        "{:?}",
        rustix::fs::fgetxattr(file, "user.colour", &mut value[..])
    ));
    said.push(format!("{:?}", rustix::fs::flistxattr(file, &mut value[..])));
    said.push(format!("{:?}", rustix::fs::fremovexattr(file, "user.colour")));
    said.push(format!("{:?}", rustix::fs::ftruncate(file, 3)));
    let there = file.metadata().unwrap();
    said.push(format!(
        "{:o} {} {} {}",
        there.mode(),
        there.uid(),
        there.gid(),
        there.len()
    ));
    // Cutting it changed the time, to that of the clock.
    let is_newer = there.mtime() > time.tv_sec;
    said.push(format!("{is_newer} {}", there.nlink()));
    file.write_all(b"still").unwrap();
    file.sync_all().unwrap();
    said.join("; ")
}

/// A directory that is removed while a process has it open.
fn removed(dir: &Path) -> String {
    let path = dir.join("removed");
    fs::create_dir(&path).unwrap();
    let open = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    let there = open.metadata();
    let kind = there.map(|there| (there.is_dir(), there.nlink()));
    let listed = Dir::read_from(&open).unwrap().count();
    let dressed = rustix::fs::fchmod(&open, Mode::from_raw_mode(0o700));
    let mode = open.metadata().map(|there| there.mode() & 0o777);
    format!("{kind:?} {listed} {dressed:?} {mode:?}")
}

fn long(dir: &Path) -> String {
    let long = dir.join("n".repeat(256));
    let fits = dir.join("n".repeat(255));
    File::create(&fits).unwrap();
    let errors = [
        long.metadata().err(),
        File::open(&long).err(),
        File::create(&long).err(),
        fs::create_dir(&long).err(),
        fs::remove_file(&long).err(),
        fs::remove_dir(&long).err(),
        fs::rename(&long, &fits).err(),
        fs::rename(&fits, &long).err(),
        fs::hard_link(&fits, &long).err(),
        std::os::unix::fs::symlink("to", &long).err(),
        fs::read_link(&long).err(),
    ];
    let codes = errors.map(|error| error.and_then(|error| error.raw_os_error()));
    fs::remove_file(&fits).unwrap();
    format!("{codes:?}")
}

/// A file that is created while a directory is read is there when it is read again from the beginning.
fn rewound(dir: &Path) -> String {
    let path = dir.join("rewound");
    fs::create_dir(&path).unwrap();
    File::create(path.join("first")).unwrap();
    let mut open = Dir::new(File::open(&path).unwrap()).unwrap();
    let mut names = Vec::new();
    for round in ["second", "third"] {
        let mut found: Vec<CString> = Vec::new();
        while let Some(entry) = open.read() {
            found.push(entry.unwrap().file_name().to_owned());
        }
        found.sort();
        names.push(format!("{found:?}"));
        File::create(path.join(round)).unwrap();
        fs::remove_file(path.join("first")).ok();
        open.rewind();
    }
    names.join(" ")
}

/// A user other than root clears set-user-id and set-group-id by writing and by truncating.
fn ids(dir: &Path) -> String {
    let mut modes = Vec::new();
    let acts = [
        ": >>$0",
        "echo a >>$0",
        "truncate -s 3 $0",
        "echo a >$0",
        "chmod 4711 $0",
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let path = dir.join(format!("ids-{number}"));
        fs::write(&path, b"program").unwrap();
        let owner = if act.starts_with("chmod") {
            Some(65_534)
        } else {
            None
        };
        chown(&path, owner, None).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "sh",
            "-c",
            act,
        ]);
        let ran = finish(command.arg(&path));
        assert_eq!(ran.code, 0, "{act}: {}", ran.err);
        modes.push(format!("{act}: {:o}", path.metadata().unwrap().mode() & 0o7777));
        // Root keeps them.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(1)
            .unwrap();
        modes.push(format!("{:o}", path.metadata().unwrap().mode() & 0o7777));
    }
    modes.join("; ")
}

fn times_and_holes(dir: &Path) -> String {
    let mut said = Vec::new();
    let path = dir.join("old");
    for before in [
        Duration::from_millis(1300),
        Duration::from_secs(5),
        Duration::from_millis(1),
    ] {
        let file = File::create(&path).unwrap();
        file.set_modified(UNIX_EPOCH - before).unwrap();
        let there = path.metadata().unwrap();
        said.push(format!("{} {}", there.mtime(), there.mtime_nsec()));
    }
    let file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .open(dir.join("holes"))
        .unwrap();
    file.write_all_at(&[7; 4096], 1 << 20).unwrap();
    file.set_len(3 << 20).unwrap();
    file.sync_all().unwrap();
    for from in [0, 1 << 20, (1 << 20) + 4096, 3 << 20] {
        let ask = |to| rustix::fs::seek(&file, to).map_err(Errno::raw_os_error);
        said.push(format!(
            "{:?} {:?}",
            ask(SeekFrom::Data(from)),
            ask(SeekFrom::Hole(from))
        ));
    }
    said.join("; ")
}

#[test]
fn files_on_a_mount_behave_as_beside_it() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("posix", 1, "4MiB");
    let beside = tempfile::tempdir_in("/var/tmp").unwrap();
    // Other users come in.
    for dir in [beside.path(), mounted.directory.path(), mounted.dir().as_path()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (name, story) in STORIES {
        let expected = story(beside.path());
        assert_eq!(story(&mounted.dir()), expected, "{name}");
    }
    assert_eq!(mounted.unmount().code, 0);
}

/// A program that opened a file for writing that the kernel was reading for another one got EIO.
#[test]
fn a_file_that_the_kernel_reads_itself_can_be_written_by_others() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::wrapped("passthrough", &[], None, &["--passthrough"]);
    let path = mounted.dir().join("z");
    fs::write(&path, b"a").unwrap();
    let mut readers: Vec<File> = (0..3).map(|_| File::open(&path).unwrap()).collect();
    let mut writer = OpenOptions::new().write(true).truncate(true).open(&path).unwrap();
    writer.write_all(b"bcd").unwrap();
    writer.sync_all().unwrap();
    for reader in &mut readers {
        let mut found = String::new();
        reader.read_to_string(&mut found).unwrap();
        assert_eq!(found, "bcd");
    }
    // A file open for reading and writing could be mapped, and writes to the mapping would not be seen.
    match OpenOptions::new().read(true).write(true).open(&path) {
        Err(error) => assert_eq!(
            error.raw_os_error(),
            Some(Errno::TXTBSY.raw_os_error()),
            "{error}"
        ),
        Ok(_) => skipped("this kernel has no passthrough: nothing is refused"),
    }
    drop((readers, writer));
    // The kernel reports the close of a file after `close` has returned.
    let mut both = None;
    wait_until("nobody reads the file by itself any more", || {
        both = OpenOptions::new().read(true).write(true).open(&path).ok();
        both.is_some()
    });
    let both = both.unwrap();
    both.write_all_at(b"x", 1).unwrap();
    both.sync_all().unwrap();
    drop(both);
    mounted.kill();
    assert_eq!(mounted.recover().code, 0);
    assert_eq!(fs::read(mounted.dir().join("z")).unwrap(), b"bxd");
}
