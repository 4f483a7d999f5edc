//! The power fails: what was not synced is lost from the disk, because it was only in the kernel's memory.
//! Lenders are other machines and keep theirs.
//!
//! Directory and journal are on ext4 on a loop device. Its image is copied at the moment in which the server
//! is killed: that is the disk's content. What ext4 had not written by then is missing in the copy, which is
//! mounted in the first image's place.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::common::disk::LoopDisk;
use crate::mount::kills::{last_said, last_written, writer};
use crate::mount::{MountFixture, cannot_mount, wait_until};

#[test]
fn synced_files_survive_a_power_failure_that_the_disk_alone_would_not() {
    if cannot_mount() {
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(disk) = LoopDisk::new(directory.path()) else {
        return;
    };
    let mut mounted = MountFixture::with(directory, Some(disk), "power", 2, "2MiB");
    let said = mounted.directory.path().join("said");
    File::create(&said).unwrap();
    let (mut from, mut behind) = (0, 0);
    for round in 0..8_u64 {
        let mut child = writer(&mounted.dir(), from, &said);
        wait_until("some syncs", || last_said(&said) > from + 20);
        std::thread::sleep(Duration::from_millis(round * 71 % 400));
        mounted.kill();
        child.wait().unwrap();
        unmount(mounted.dir(), UnmountFlags::DETACH).unwrap();
        mounted.disk.as_mut().unwrap().power_off();
        // What a database would have found there without the journal.
        let beneath = mounted.dir().join(".netram/files");
        let bytes: u64 = { fs::read_dir(beneath).unwrap() }
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        mounted.mount();
        let (synced, there) = (last_said(&said), last_written(&mounted.dir()));
        assert!(there >= synced, "{synced} were synced, and {there} are there");
        let now: u64 = { fs::read_dir(mounted.dir()).unwrap() }
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        behind += u64::from(bytes < now);
        from = there;
        writeln!(OpenOptions::new().append(true).open(&said).unwrap(), "{there}").unwrap();
    }
    assert!(
        behind > 1,
        "the disk alone had everything in {} of 8 rounds",
        8 - behind
    );
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(last_written(&mounted.dir()), from);
}
