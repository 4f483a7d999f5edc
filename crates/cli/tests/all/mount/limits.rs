//! A mount that lacks something: descriptors, permissions, room for its catalog. It reports that, goes on,
//! and loses nothing.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::io::Errno;

use crate::common::{finish, forks, skipped};
use crate::mount::{MountFixture, cannot_mount, wait_until};

/// A limit of descriptors that was too low for a database before.
const FEW: [&str; 4] = ["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"];
pub(super) const USER: u32 = 65_534;
pub(super) const AS_USER: [&str; 6] = [
    "setpriv",
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
];

fn written(number: usize) -> Vec<u8> {
    format!("{number} ").repeat(number % 40 + 1).into_bytes()
}

/// Each file that was written stayed open until a checkpoint: the mount was out of descriptors after a
/// thousand, and the checkpoint took that for a disk that had failed.
#[test]
fn with_256_descriptors_any_number_of_files_is_written_and_synced() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::wrapped("few", &FEW, None, &["--checkpoint", "100ms"]);
    let path = |number: usize| mounted.dir().join(format!("file-{number}"));
    for number in 0..700 {
        fs::write(path(number), written(number)).unwrap();
    }
    // What was written since the last checkpoint is still open.
    mounted.wait_for_checkpoint();
    // More files at once than there are descriptors.
    let mut open = Vec::new();
    let error = loop {
        match OpenOptions::new().append(true).open(path(open.len())) {
            Ok(file) => open.push(file),
            Err(error) => break error,
        }
        assert!(open.len() < 256, "one descriptor for each");
    };
    let code = error.raw_os_error();
    assert!(
        [Errno::NFILE, Errno::MFILE]
            .map(|errno| Some(errno.raw_os_error()))
            .contains(&code),
        "{error}"
    );
    assert!(open.len() > 100, "{}", open.len());
    for (number, file) in open.iter_mut().enumerate() {
        file.write_all(b"more").unwrap();
        if number % 50 == 0 {
            file.sync_all().unwrap();
        }
    }
    let held = open.len();
    open.truncate(held - 10);
    mounted.wait_for_checkpoint();
    open.pop().unwrap().sync_all().unwrap();
    drop(open);
    fs::write(path(700), written(700)).unwrap();
    File::open(path(700)).unwrap().sync_all().unwrap();
    mounted.kill();
    let ran = mounted.recover();
    assert_eq!(ran.code, 0, "{}", ran.err);
    for number in 0..=700 {
        let more: &[u8] = if number < held { b"more" } else { b"" };
        let found = fs::read(mounted.dir().join(format!("file-{number}"))).unwrap();
        assert_eq!(found, [&written(number)[..], more].concat(), "file-{number}");
    }
}

/// A catalog that found no room ended the thread that records what is written, for good; what recovery had no
/// record of it removed.
#[test]
fn unsynced_files_survive_a_refused_checkpoint_and_a_killed_server() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::wrapped("refused", &[], None, &["--checkpoint", "50ms"]);
    let server = mounted.server_id().as_raw_nonzero();
    // In the way of the next catalog.
    let hindrance = mounted.catalog().with_file_name(format!("catalog.{server}"));
    wait_until("no catalog is under way", || fs::create_dir(&hindrance).is_ok());
    let before = fs::metadata(mounted.catalog()).unwrap().ino();
    for number in 0..20 {
        fs::write(mounted.dir().join(format!("a-{number}")), written(number)).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(
        fs::metadata(mounted.catalog()).unwrap().ino(),
        before,
        "none was written"
    );
    fs::remove_dir(&hindrance).unwrap();
    mounted.wait_for_checkpoint();
    for number in 0..20 {
        fs::write(mounted.dir().join(format!("b-{number}")), written(number)).unwrap();
    }
    // At once: the last of them have no record yet.
    mounted.kill();
    let ran = mounted.recover();
    assert_eq!(ran.code, 0, "{}", ran.err);
    for (letter, number) in ["a", "b"]
        .into_iter()
        .flat_map(|letter| (0..20).map(move |number| (letter, number)))
    {
        let name = format!("{letter}-{number}");
        assert_eq!(
            fs::read(mounted.dir().join(&name)).unwrap(),
            written(number),
            "{name}"
        );
    }
}

/// Whether another user may run the program and mount, or what is missing.
pub(super) fn cannot_be_user() -> bool {
    let mut command = Command::new(AS_USER[0]);
    command.args(&AS_USER[1..]).args([
        "sh",
        "-c",
        "test -r /dev/fuse -a -w /dev/fuse && fusermount3 --version && \"$0\" --version",
    ]);
    let ran = finish(command.arg(crate::common::program()));
    if ran.code != 0 {
        skipped(format_args!(
            "an ordinary user needs setpriv, fusermount3, /dev/fuse, and the right to run {}: {}",
            crate::common::program(),
            ran.err
        ));
    }
    ran.code != 0
}

fn as_user(dir: &Path, script: &str) {
    let mut command = Command::new(AS_USER[0]);
    command
        .args(&AS_USER[1..])
        .args(["sh", "-ec", script])
        .current_dir("/");
    let ran = finish(command.env("DIR", dir));
    assert_eq!(ran.code, 0, "{script}: {}", ran.err);
}

/// Five seconds after `chmod 000` of a file the mount was dead: the checkpoint could not open it.
#[test]
fn an_ordinary_users_mount_goes_on_without_the_users_own_permissions() {
    if cannot_mount() || cannot_be_user() {
        return;
    }
    let mut mounted = MountFixture::wrapped("user", &AS_USER, Some(USER), &["--checkpoint", "50ms"]);
    let dir = mounted.dir();
    as_user(
        &dir,
        "cd $DIR; echo secret >closed; chmod 000 closed; mkdir shut; chmod 000 shut",
    );
    // The mode does not apply to the program that creates the file, as git does with its objects.
    as_user(&dir, "cd $DIR; umask 0333; echo object >object; sync object");
    as_user(
        &dir,
        "cd $DIR; echo write-only >letters; chmod 200 letters; echo more >>letters",
    );
    let catalog = || fs::metadata(mounted.catalog()).unwrap().ino();
    for _ in 0..3 {
        let before = catalog();
        as_user(&dir, "cd $DIR; echo new >>new; chmod 000 closed");
        wait_until("a checkpoint", || catalog() != before);
    }
    as_user(&dir, "cd $DIR; echo synced >synced; sync synced; chmod 755 shut");
    mounted.kill();
    let ran = mounted.recover();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let there = |name: &str| {
        (
            fs::read_to_string(dir.join(name)).unwrap(),
            fs::metadata(dir.join(name)).unwrap().mode() & 0o777,
        )
    };
    assert_eq!(there("closed"), ("secret\n".to_owned(), 0));
    assert_eq!(there("object"), ("object\n".to_owned(), 0o444));
    assert_eq!(there("letters"), ("write-only\nmore\n".to_owned(), 0o200));
    assert_eq!(there("synced").0, "synced\n");
    assert_eq!(there("new").0, "new\nnew\nnew\n");
    // He ends it himself, too.
    mounted.mount();
    let ran = mounted.unmount();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Makes small files, more than there are descriptors, and reports each twentieth when it is synced.
const MAKER: &str = r"
import os, sys
directory, number = sys.argv[1], 0
while True:
    number += 1
    file = os.open(directory + '/f%06d' % number, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, b'%06d' % number * (number % 50 + 1))
    if number % 20 == 0:
        os.fsync(file)
        print(number, flush=True)
    os.close(file)
    if number % 7 == 0:
        os.rename(directory + '/f%06d' % number, directory + '/f%06d' % (number - 1))
    if number > 600:
        os.unlink(directory + '/f%06d' % (number - 600)) if os.path.exists(directory + '/f%06d' % (number - 600)) else None
";

fn maker(dir: &Path, said: &Path) -> Child {
    let _alone = forks();
    Command::new("python3")
        .args(["-c", MAKER])
        .arg(dir)
        .stdout(File::create(said).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn rounds(rounds: u64) {
    let mut mounted = MountFixture::wrapped("descriptors", &FEW, None, &["--checkpoint", "500ms"]);
    let said = mounted.directory.path().join("said");
    for round in 0..rounds {
        let mut child = maker(&mounted.dir(), &said);
        let lines = || fs::read_to_string(&said).unwrap().lines().count() as u64;
        wait_until("some syncs", || lines() > 10 + round % 17);
        std::thread::sleep(std::time::Duration::from_millis(round * 37 % 300));
        mounted.kill();
        child.wait().unwrap();
        mounted.mount();
        let text = fs::read_to_string(&said).unwrap();
        let last: u64 = text.lines().last().unwrap().parse().unwrap();
        check(&mounted.dir(), last, round);
    }
}

/// All files up to the last one that was synced are there, and no file has anything but what was written to
/// it.
fn check(dir: &Path, synced: u64, round: u64) {
    let mut there = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if let Some(number) = name.strip_prefix('f') {
            let number: u64 = number.parse().unwrap();
            // Every seventh was renamed over the one before.
            let own = |number: u64| format!("{number:06}").repeat((number % 50 + 1) as usize);
            let found = fs::read_to_string(&path).unwrap();
            let next = (number + 1).is_multiple_of(7) && found == own(number + 1);
            // The last one may have been made, and not been written to yet.
            let fresh = number > synced && found.is_empty();
            assert!(
                next || fresh || found == own(number),
                "round {round}, {name}: {found:?}"
            );
            there += u64::from(number <= synced);
        }
        fs::remove_file(path).unwrap();
    }
    let made = synced.min(600);
    let renamed = made / 7 + 1;
    assert!(
        there + renamed + 30 >= made,
        "round {round}: {there} of {made} up to {synced}"
    );
}

#[test]
fn a_server_with_256_descriptors_that_is_killed_has_lost_nothing() {
    if cannot_mount() {
        return;
    }
    rounds(2);
}

#[test]
#[ignore = "half an hour: make soak"]
fn a_thousand_killed_servers_with_256_descriptors_have_lost_nothing() {
    if cannot_mount() {
        return;
    }
    rounds(1000);
}
