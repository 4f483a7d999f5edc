//! A journal that is a copy, or an older one that was put back, never writes over the newer files of its
//! directory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::common::finish;
use crate::mount::{MountFixture, cannot_mount};

/// The threads of the server look twenty times a second.
const LOOK: Duration = Duration::from_millis(200);
const ROUNDS: usize = 50;

fn write(mounted: &MountFixture, bytes: &[u8]) {
    let path = mounted.dir().join("file");
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
}

fn copy(from: &Path, to: &Path) {
    let ran = finish(Command::new("cp").arg("-a").args([from, to]));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Where the records end that the journal's own disk has.
fn end(journal: &Path) -> u64 {
    let journal = netram_journal::JournalInspector::open(journal).unwrap();
    journal.verify(&mut |_| true).scan.end.lsn.0
}

fn killed(mounted: &mut MountFixture) {
    mounted.kill();
    unmount(mounted.dir(), UnmountFlags::DETACH).unwrap();
}

/// Checks that directory and journal were not changed, and that the newest journal brings everything back.
fn is_refused_and_the_newest_is_not(mounted: &MountFixture, older: &Path, newest: &[u8]) {
    let (journal, aside) = (mounted.journal(), mounted.directory.path().join("aside"));
    fs::rename(&journal, &aside).unwrap();
    fs::rename(older, &journal).unwrap();
    let view = fs::read(journal.join("view")).unwrap();
    for refused in [mounted.recover(), finish(&mut mount_again(mounted))] {
        assert_eq!(refused.code, 1, "{}", refused.out);
        for named in ["older than the directory's files", "older", "stamp"] {
            assert!(refused.err.contains(named), "{named}: {}", refused.err);
        }
    }
    assert!(view == fs::read(journal.join("view")).unwrap());
    fs::rename(&journal, older).unwrap();
    fs::rename(&aside, &journal).unwrap();
    let recovered = mounted.recover();
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert_eq!(fs::read(mounted.dir().join("file")).unwrap(), newest);
    assert!(!mounted.dir().join(".netram").exists());
}

fn mount_again(mounted: &MountFixture) -> Command {
    let mut command = mounted.program();
    command
        .args(["mount", "attach"])
        .arg(mounted.dir())
        .arg("--on")
        .arg(mounted.journal());
    command
}

#[test]
fn a_copy_of_a_journal_in_use_is_refused_when_its_original_went_on() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("copied", 0, "4MiB");
    mounted.mount_with(&["--journal-size".into(), "4MiB".into()]);
    write(&mounted, b"first");
    let older = mounted.directory.path().join("older");
    copy(&mounted.journal(), &older);
    for round in 0.. {
        assert!(round < ROUNDS, "the stamp never follows");
        let newest = format!("round {round}");
        write(&mounted, newest.as_bytes());
        std::thread::sleep(LOOK);
        killed(&mut mounted);
        let stamp = fs::read(mounted.dir().join(".netram/stamp")).unwrap();
        let lsn = u64::from_le_bytes(stamp[32..40].try_into().unwrap());
        // On a busy machine the server may not have looked.
        if lsn > end(&older) {
            return is_refused_and_the_newest_is_not(&mounted, &older, newest.as_bytes());
        }
        mounted.mount();
        fs::remove_dir_all(&older).unwrap();
        copy(&mounted.journal(), &older);
    }
}

#[test]
fn a_backup_of_a_journal_is_refused_when_the_directory_was_mounted_since() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("backup", 0, "4MiB");
    mounted.mount_with(&["--journal-size".into(), "4MiB".into()]);
    write(&mounted, b"first");
    killed(&mut mounted);
    let older = mounted.directory.path().join("older");
    copy(&mounted.journal(), &older);
    mounted.mount();
    write(&mounted, b"newer");
    killed(&mut mounted);
    is_refused_and_the_newest_is_not(&mounted, &older, b"newer");
}
