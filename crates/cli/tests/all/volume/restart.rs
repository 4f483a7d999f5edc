//! The server of an attached volume is killed, and users do not notice: another takes its place.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::volume::{
    VolumeFixture, can_attach, check_files, content, kill, skipped, tool, until, write_synced,
};

#[test]
fn a_file_system_only_waits_when_its_server_is_killed() {
    const NAME: &str = "a_file_system_only_waits_when_its_server_is_killed";
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    let _lenders = place.attach_with_two(["wait-a", "wait-b"]);
    let (device, mount) = place.device_and_mount();
    // Smaller than the device: its end is not used.
    tool("mkfs.ext4", &["-q", "-F", &device, "48M"]).unwrap();
    tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    let (stop, directory) = (AtomicBool::new(false), PathBuf::from(&mount));
    let synced = std::thread::scope(|scope| {
        // Any error ends the test: users must not notice.
        let writing = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                write_synced(&directory, number);
                read_back(&directory, number / 2);
                number += 1;
            }
            number
        });
        // Past any cache, and several at once: requests are under way whenever the server dies.
        for block in 0..3 {
            let (stop, device) = (&stop, device.as_str());
            scope.spawn(move || read_over_and_over(device, block, stop));
        }
        let mut servers = Vec::new();
        for round in 0..3u64 {
            let from = directory.join((20 + round * 20).to_string());
            until("files are being written", || {
                from.exists() || writing.is_finished()
            });
            std::thread::sleep(Duration::from_millis(17 * round));
            let server = place.server();
            kill(&server);
            servers.push(server);
            until("another server has taken over", || {
                let shown = place.json(&["status", "db"]);
                let (attached, live) = (&shown["attached"], &shown["live"]);
                let serves = live["pid"] == attached["server"]["id"];
                (serves && attached["restarts"] == round + 1) || writing.is_finished()
            });
        }
        let reached = fs::read_dir(&directory).unwrap().count();
        until("it goes on after the last", || {
            fs::read_dir(&directory).unwrap().count() > reached + 20 || writing.is_finished()
        });
        stop.store(true, Ordering::Relaxed);
        servers.dedup();
        assert_eq!(servers.len(), 3, "one was killed twice");
        writing.join().unwrap()
    });
    tool("umount", &[&mount]).unwrap();
    check_files(&device, &mount, synced);
    place.json(&["detach", "db"]);
}

#[test]
fn servers_that_keep_dying_are_not_replaced_for_ever() {
    const NAME: &str = "servers_that_keep_dying_are_not_replaced_for_ever";
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "16MiB", "--journal-size", "4MiB"]);
    place.json(&["attach", "db", "--way", "fuse", "--restarts", "1"]);
    let listed = || place.json(&["list"]);
    let (first, device) = {
        let attached = &listed()[0]["attached"];
        (attached["server"]["id"].clone(), place.path("run/dev/db"))
    };
    kill(&first);
    until("another server is there", || {
        let listed = listed();
        listed[0]["attached"]["server"]["id"] != first && place.json(&["status", "db"])["live"] != Value::Null
    });
    fs::read(&device).unwrap();
    kill(&listed()[0]["attached"]["server"]["id"]);
    until("the supervisor has given it up", || {
        listed().as_array().is_some_and(Vec::is_empty)
    });
    until("it has said so", || {
        let log = fs::read_to_string(place.path("run/db/log")).unwrap();
        log.contains("the server of /dev/loop")
    });
    place.attach();
    place.json(&["detach", "db"]);
}

fn read_back(directory: &Path, number: u64) {
    let found = fs::read(directory.join(number.to_string())).unwrap();
    assert!(found == content(number), "file {number} has other bytes");
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Reads a part of the device that is never written.
fn read_over_and_over(device: &str, block: u64, stop: &AtomicBool) {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let device = File::options()
        .read(true)
        .custom_flags(direct)
        .open(device)
        .unwrap();
    let mut first = Aligned([0; 4096]);
    device
        .read_exact_at(&mut first.0, block * 4096 + (60 << 20))
        .unwrap();
    while !stop.load(Ordering::Relaxed) {
        let mut again = Aligned([1; 4096]);
        device
            .read_exact_at(&mut again.0, block * 4096 + (60 << 20))
            .unwrap();
        assert!(again.0 == first.0, "block {block} changed");
    }
}

/// Whether this kernel sends again what a killed server has not answered: since 6.9.
pub(crate) fn can_be_replaced() -> Result<(), String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|other: char| !other.is_ascii_digit());
    let mut next = || {
        numbers
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0u32)
    };
    match (next(), next()) >= (6, 9) {
        true => Ok(()),
        false => Err(format!("Linux {} is older than 6.9", release.trim())),
    }
}
