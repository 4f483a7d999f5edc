//! Creating a volume is all or nothing, and the remains of an interrupted creation or deletion can be
//! removed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use netram_journal::forget::WindowRelease;
use netram_volume::{Volume, VolumeCreateError, VolumeDeleteError};

const PLACE: &str = "NETRAM_TEST_DIRECTORY";
const BYTES: u64 = 8 << 20;
const JOURNAL: u64 = 1 << 20;
const ROUNDS: usize = 6;

#[test]
#[ignore = "the process that another test kills"]
fn maker() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // Ends even if it is never killed.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let mut out = std::io::stdout().lock();
    for number in 0.. {
        Volume::create(&directory.join(format!("volume{number}")), BYTES, JOURNAL).unwrap();
        writeln!(out, "made {number}").unwrap();
        out.flush().unwrap();
    }
}

/// A crash before the superblock was written left a directory that was no volume, could not be created again
/// and could not be deleted.
#[test]
fn a_process_killed_while_it_creates_a_volume_leaves_none_or_all_of_it() {
    for round in 0..ROUNDS {
        let directory = tempfile::tempdir().unwrap();
        let mut maker = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "create::maker", "--ignored", "--nocapture"])
            .env(PLACE, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(maker.stdout.take().unwrap()).lines();
        let made = lines.map_while(Result::ok).filter(|line| line.contains("made "));
        let made = made.take(1 + round % 2).count();
        maker.kill().unwrap();
        maker.wait().unwrap();
        assert!(made > 0, "the creating process ended by itself");
        let named = |path: &Path| !path.file_name().unwrap().to_str().unwrap().starts_with('.');
        let paths = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| named(path)) {
            let seen = Volume::inspect(&path);
            assert!(
                seen.is_ok(),
                "round {round}, {}: {:?}",
                path.display(),
                seen.err()
            );
        }
        // The name in use at the kill is free, or a complete volume's.
        for number in 0..4 {
            let path = directory.path().join(format!("volume{number}"));
            match Volume::create(&path, BYTES, JOURNAL) {
                Ok(_) | Err(VolumeCreateError::Exists(_)) => {
                    drop(Volume::delete(&path, WindowRelease::Logged).unwrap())
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    }
}

#[test]
fn creating_a_volume_removes_only_the_remains_of_its_own_interrupted_creation() {
    let directory = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let path = directory.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::write(path.join("image"), "content").unwrap();
        path
    };
    let left = make(".volume.new-0123abcd");
    let others = [
        ".volume.new-0123",
        ".volume.new-notanumb",
        ".volume2.new-0123abcd",
        "volume.new-0123abcd",
    ]
    .map(make);
    let being_made = make(".volume.new-00000001");
    let making = fs::File::open(&being_made).unwrap();
    making.try_lock().unwrap();
    Volume::create(&directory.path().join("volume"), BYTES, JOURNAL).unwrap();
    assert!(!left.exists());
    assert!(others.iter().all(|other| other.join("image").exists()));
    assert!(being_made.join("image").exists());
    drop(making);
    let (count, exists) = (
        || fs::read_dir(directory.path()).unwrap().count(),
        Volume::create(&directory.path().join("volume"), BYTES, JOURNAL),
    );
    assert!(matches!(exists, Err(VolumeCreateError::Exists(_))));
    assert_eq!(count(), others.len() + 2, "a failed creation removes nothing");
    Volume::delete(&directory.path().join("volume"), WindowRelease::Logged).unwrap();
    Volume::create(&directory.path().join("volume"), BYTES, JOURNAL).unwrap();
    assert!(!being_made.exists());
}

/// As left by an interrupted deletion: superblock first, image last.
#[test]
fn the_remains_of_an_interrupted_deletion_can_be_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    let gone = ["super", "journal/lock", "journal", "sums"];
    for cut in 1..=gone.len() {
        Volume::create(&path, BYTES, JOURNAL).unwrap();
        for name in &gone[..cut] {
            let path = path.join(name);
            match path.is_dir() {
                true => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
        assert!(matches!(
            Volume::create(&path, BYTES, JOURNAL),
            Err(VolumeCreateError::Exists(_))
        ));
        Volume::delete(&path, WindowRelease::Logged).unwrap();
        assert!(!path.exists());
    }
    // A directory without a volume's file is not deleted, whatever its files are called.
    fs::create_dir_all(path.join("journal")).unwrap();
    fs::write(path.join("image"), [0; 8192]).unwrap();
    assert!(matches!(
        Volume::delete(&path, WindowRelease::Logged),
        Err(VolumeDeleteError::Io { .. })
    ));
    assert!(path.join("image").exists() && path.join("journal").exists());
}
