//! SIGKILL of the server of a mount and of its lenders, at any moment: what was synced is there.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::forks;
use crate::mount::{MountFixture, cannot_mount, wait_until};

/// Appends numbered records to files that it renames now and then, and reports each when it is synced.
const WRITER: &str = r"
import os, sys
directory, number = sys.argv[1], int(sys.argv[2])
file = os.open(directory + '/log', os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
while True:
    number += 1
    os.write(file, b'%08d %s\n' % (number, b'x' * (number % 3000)))
    if number % 50 == 0:
        # Not synced: a file that is renamed has what was written to it.
        os.close(file)
        os.rename(directory + '/log', directory + '/log.%08d' % number)
        file = os.open(directory + '/log', os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        os.fsync(os.open(directory, os.O_RDONLY))
    else:
        os.fdatasync(file)
    print(number, flush=True)
";

pub(crate) fn writer(dir: &Path, from: u64, said: &Path) -> Child {
    let _alone = forks();
    let said = OpenOptions::new().append(true).create(true).open(said).unwrap();
    Command::new("python3")
        .args(["-c", WRITER])
        .arg(dir)
        .arg(from.to_string())
        .stdout(said)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the last number that was reported as synced.
pub(crate) fn last_said(said: &Path) -> u64 {
    let text = fs::read_to_string(said).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().last().map_or(0, |line| line.parse().unwrap())
}

/// The last number in the files: they are there from the first on, each once, and whole.
pub(crate) fn last_written(dir: &Path) -> u64 {
    let mut files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort_by_key(|path| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        // The file that is being written to sorts last.
        if name == "log" { "log.z".to_owned() } else { name }
    });
    let mut last = 0;
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let (whole, torn) = text.rsplit_once('\n').unwrap_or(("", &text));
        for line in whole.lines() {
            let number: u64 = line[..8].parse().unwrap();
            assert_eq!(number, last + 1, "{}", path.display());
            assert_eq!(line[9..], "x".repeat((number % 3000) as usize));
            last = number;
        }
        if !torn.is_empty() {
            // Written, and never synced. It is cut off, as a database would.
            let length = text.len() - torn.len();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            file.set_len(length as u64).unwrap();
            file.sync_all().unwrap();
        }
    }
    last
}

/// Rounds of writing and killing. Returns how many records were synced.
fn rounds(mounted: &mut MountFixture, rounds: u64, mut between: impl FnMut(&mut MountFixture, u64)) -> u64 {
    let said = mounted.directory.path().join("said");
    File::create(&said).unwrap();
    let mut from = 0;
    for round in 0..rounds {
        let mut child = writer(&mounted.dir(), from, &said);
        wait_until("some syncs", || last_said(&said) > from + 20);
        std::thread::sleep(Duration::from_millis(round * 37 % 400));
        between(mounted, round);
        mounted.kill();
        child.wait().unwrap();
        mounted.mount();
        let (synced, there) = (last_said(&said), last_written(&mounted.dir()));
        assert!(there >= synced, "{synced} were synced, and {there} are there");
        from = there;
        let mut said = OpenOptions::new().append(true).open(&said).unwrap();
        writeln!(said, "{there}").unwrap();
    }
    from
}

#[test]
fn a_killed_server_has_lost_nothing_that_was_synced() {
    if cannot_mount() {
        return;
    }
    // So small that it is emptied on the way.
    let mut mounted = MountFixture::new("killed", 2, "1MiB");
    let records = rounds(&mut mounted, 12, |_, _| ());
    assert!(records > 200, "{records}");
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(last_written(&mounted.dir()), records);
}

#[test]
fn a_killed_lender_before_it_makes_no_difference() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("lender", 3, "1MiB");
    rounds(&mut mounted, 2, |mounted, _| {
        // This lender comes back neither with its memory nor at all. The other two are enough for recovery.
        mounted.lenders.pop();
        std::thread::sleep(Duration::from_millis(500));
    });
}

/// Not in every run: a thousand rounds take a quarter of an hour. `make soak` has them.
#[test]
#[ignore = "a quarter of an hour: make soak"]
fn a_thousand_killed_servers_have_lost_nothing() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("thousand", 2, "4MiB");
    rounds(&mut mounted, 1000, |_, _| ());
}
