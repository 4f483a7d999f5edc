//! A volume from creation to deletion, on real files and with a real lender.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_block::{DeviceError, FlushPolicy};
use netram_journal::forget::WindowRelease;
use netram_lender::{Lender, LenderConfig};
use netram_transport::Security;
use netram_volume::{
    BlockDevice, Volume, VolumeCreateError, VolumeDeleteError, VolumeOpenError, VolumeSettings,
};

const BYTES: u64 = 8 << 20;
const JOURNAL: u64 = 1 << 20;
const BLOCK: usize = 4096;

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume");
    Volume::create(&path, BYTES, JOURNAL).unwrap();
    (directory, path)
}

fn open(path: &Path) -> Volume {
    Volume::open_with(path, &VolumeSettings::default()).unwrap().0
}

fn write(volume: &Volume, block: u64, value: u8) {
    let pending = volume.write(block * BLOCK as u64, &[value; BLOCK]).unwrap();
    volume.wait(pending).unwrap();
}

fn read(volume: &Volume, block: u64) -> u8 {
    let mut bytes = [0xee; BLOCK];
    volume.read(block * BLOCK as u64, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

#[test]
fn a_volume_whose_journal_has_more_than_its_image_is_reported_as_not_closed() {
    let (_directory, path) = place();
    assert!(!Volume::inspect(&path).unwrap().unapplied);
    let volume = open(&path);
    write(&volume, 7, 7);
    // As after a crash; without lenders there is no other sign.
    let seen = Volume::inspect(&path).unwrap();
    assert!(seen.unapplied && seen.members.is_empty());
    volume.close().unwrap();
    assert!(!Volume::inspect(&path).unwrap().unapplied);
}

/// A volume's directory refers to nothing outside: a copy has its own journal, image and checksums. A closed
/// volume's journal has no record that the image lacks, so none of its files can be out of date.
#[test]
fn a_copied_volume_changes_nothing_of_its_original() {
    let (directory, path) = place();
    let volume = open(&path);
    write(&volume, 1, 1);
    let copy = directory.path().join("copy");
    // A copy of a running volume, with records in the journal.
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&path, &copy])
        .status();
    assert!(copied.unwrap().success());
    (0..100).for_each(|block| write(&volume, block, 2));
    volume.close().unwrap();
    let (other, recovered) = Volume::open_with(&copy, &VolumeSettings::default()).unwrap();
    assert!(recovered.disk.records > 0 && read(&other, 1) == 1);
    write(&other, 1, 3);
    other.close().unwrap();
    let volume = open(&path);
    assert!((0..100).all(|block| read(&volume, block) == 2));
    // The original continues, and then its directory is put back as it was.
    write(&volume, 1, 4);
    volume.close().unwrap();
    fs::rename(&path, directory.path().join("newer")).unwrap();
    fs::rename(&copy, &path).unwrap();
    assert_eq!(read(&open(&path), 1), 3);
    assert_eq!(read(&open(&directory.path().join("newer")), 1), 4);
}

#[test]
fn writes_are_there_after_reopening() {
    let (_directory, path) = place();
    let volume = open(&path);
    // Several times the journal's size, so that stages are applied in between.
    for turn in 0..4u8 {
        (0..200).for_each(|block| write(&volume, block, turn * 14 + block as u8));
    }
    volume.discard(0, 5 * BLOCK as u64).unwrap();
    volume.flush().unwrap();
    assert!(volume.status().disk.statistics.stages > 0);
    volume.close().unwrap();
    let (volume, recovered) = Volume::open_with(&path, &VolumeSettings::default()).unwrap();
    assert_eq!(
        recovered.disk.records, 0,
        "the image of a closed volume has every write"
    );
    assert!((0..200).all(|block| read(&volume, block) == if block < 5 { 0 } else { 42 + block as u8 }));
    let mut runs = Vec::new();
    let mut each = |length, hole| {
        runs.push((length / BLOCK as u64, hole));
        true
    };
    volume.extents(0, BYTES, &mut each).unwrap();
    assert_eq!(
        runs,
        [(5, true), (195, false), (BYTES / BLOCK as u64 - 200, true)]
    );
}

/// The disk lost a page of checksums, which the file system returns as zeros.
#[test]
fn blocks_with_lost_checksums_cannot_be_read() {
    let (_directory, path) = place();
    let volume = open(&path);
    (100..200).for_each(|block| write(&volume, block, 7));
    volume.drain().unwrap();
    let sums = fs::OpenOptions::new()
        .write(true)
        .open(path.join("sums"))
        .unwrap();
    sums.write_all_at(&[0; BLOCK], BLOCK as u64).unwrap();
    let mut runs = Vec::new();
    let mut each = |length, hole| {
        runs.push((length / BLOCK as u64, hole));
        true
    };
    volume.extents(0, BYTES, &mut each).unwrap();
    let blocks = BYTES / BLOCK as u64;
    assert_eq!(runs, [(100, true), (100, false), (blocks - 200, true)]);
    let refused = volume.read(100 * BLOCK as u64, &mut [0; BLOCK]);
    assert_eq!(refused, Err(DeviceError::Corrupt { block: 100 }));
}

#[test]
fn a_volume_opens_only_once_and_can_be_inspected_while_open() {
    let (_directory, path) = place();
    let volume = open(&path);
    write(&volume, 0, 1);
    let refused = Volume::open_with(&path, &VolumeSettings::default()).unwrap_err();
    let own = format!("process {}", std::process::id());
    assert!(
        matches!(refused, VolumeOpenError::Journal(_)) && refused.to_string().contains(&own),
        "{refused}"
    );
    let refused = Volume::delete(&path, WindowRelease::Logged).unwrap_err();
    assert!(matches!(refused, VolumeDeleteError::Journal(_)), "{refused}");
    let seen = Volume::inspect(&path).unwrap();
    assert_eq!(
        (seen.superblock.bytes, seen.in_use, seen.journal_bytes),
        (BYTES, true, JOURNAL)
    );
    assert_eq!(read(&volume, 0), 1, "the refused operations changed the volume");
    drop(volume);
    let seen = Volume::inspect(&path).unwrap();
    assert!(!seen.in_use);
    assert!(
        seen.image_taken_bytes < BYTES / 2,
        "{} of a sparse image",
        seen.image_taken_bytes
    );
    Volume::delete(&path, WindowRelease::Logged).unwrap();
    assert!(!path.exists());
    assert!(matches!(
        Volume::delete(&path, WindowRelease::Logged),
        Err(VolumeDeleteError::Io { .. })
    ));
}

#[test]
fn only_a_volume_is_deleted_and_only_its_own_files() {
    let (directory, path) = place();
    let other = directory.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("super"), [0; 8192]).unwrap();
    assert!(matches!(
        Volume::delete(&other, WindowRelease::Logged),
        Err(VolumeDeleteError::NoVolume { .. })
    ));
    assert!(other.join("super").exists());
    fs::write(path.join("notes"), "mine").unwrap();
    assert!(matches!(
        Volume::delete(&path, WindowRelease::Logged),
        Err(VolumeDeleteError::Io { .. })
    ));
    assert_eq!(fs::read_to_string(path.join("notes")).unwrap(), "mine");
}

#[test]
fn creation_overwrites_nothing_and_leaves_nothing_incomplete() {
    let (directory, path) = place();
    assert!(matches!(
        Volume::create(&path, BYTES, JOURNAL),
        Err(VolumeCreateError::Exists(_))
    ));
    assert!(Volume::inspect(&path).is_ok());
    let odd = directory.path().join("odd");
    assert!(matches!(
        Volume::create(&odd, 1000, JOURNAL),
        Err(VolumeCreateError::Volume { .. })
    ));
    assert!(matches!(
        Volume::create(&odd, BYTES, 1000),
        Err(VolumeCreateError::Journal(_))
    ));
    assert!(!odd.exists());
    let refused = Volume::open_with(&odd, &VolumeSettings::default()).unwrap_err();
    assert!(matches!(refused, VolumeOpenError::File { .. }), "{refused}");
}

#[test]
fn files_of_two_volumes_are_not_mixed() {
    let ((_one, path), (_two, other)) = (place(), place());
    for name in ["image", "sums", "super"] {
        let aside = path.join("aside");
        fs::rename(path.join(name), &aside).unwrap();
        fs::copy(other.join(name), path.join(name)).unwrap();
        let refused = Volume::open_with(&path, &VolumeSettings::default()).unwrap_err();
        assert!(
            matches!(refused, VolumeOpenError::Volume { .. }),
            "{name}: {refused}"
        );
        fs::rename(&aside, path.join(name)).unwrap();
    }
    open(&path).close().unwrap();
}

#[test]
fn a_volume_grows_while_it_is_open() {
    let (_directory, path) = place();
    let volume = open(&path);
    let beyond = BYTES / BLOCK as u64;
    assert!(volume.write(BYTES, &[1; BLOCK]).is_err());
    volume.grow(2 * BYTES).unwrap();
    assert_eq!(volume.geometry().bytes, 2 * BYTES);
    write(&volume, beyond, 9);
    drop(volume);
    assert_eq!(read(&open(&path), beyond), 9);
}

#[test]
fn a_volume_uses_the_lender_in_its_settings_file() {
    let (directory, path) = place();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = format!("unix:{}", directory.path().join("lend.sock").display());
    let _lender = Lender::start(LenderConfig {
        listen: vec![socket.parse().unwrap()],
        security: Security::Insecure,
        memory: 64 << 20,
        store: Some(memory.path().join("lent")),
        ..LenderConfig::default()
    })
    .unwrap();
    let text = format!(
        "[journal]\nlenders = [\"{socket}\"]\ninsecure = true\none-domain = true\nwindow = \"256KiB\"\n[volume]\nflush = \"disk\"\nstage = \"256KiB\"\n"
    );
    fs::write(path.join("netram.toml"), text).unwrap();
    let settings = VolumeSettings::load(&path.join("netram.toml")).unwrap();
    assert_eq!(settings.flush, FlushPolicy::Disk);
    let (volume, _) = Volume::open_with(&path, &settings).unwrap();
    volume
        .journal()
        .wait_for_members(Duration::from_secs(20))
        .unwrap();
    (0..300).for_each(|turn| write(&volume, turn % 100, turn as u8));
    volume.flush().unwrap();
    let status = volume.status();
    assert_eq!(status.journal.writer.blocked, None);
    assert!(
        status.journal.log.stable >= status.journal.log.tail,
        "FLUSH did not wait for the disk"
    );
    volume.close().unwrap();
    let volume = open(&path);
    assert!((0..100).all(|block| read(&volume, block) == (200 + block) as u8));
}
