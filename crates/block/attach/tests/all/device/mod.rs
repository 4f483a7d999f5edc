//! Tests with real devices: a volume is attached, a file system created on it, used, cut off, and checked.
//!
//! The server is this test binary again ([`server`]). Its device is a file behind a write cache that dies
//! with the process ([`cache`]), so everything that survives a killed server was flushed. The tests need
//! root, FUSE and loop devices; otherwise each prints `SKIPPED` and the reason. Everything that a test has
//! started or mounted is removed at its end, and no wait is unlimited.

mod cache;
mod machine;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use netram_attach::DeviceUser;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::process::Signal;

use crate::device::cache::{CachedDevice, SERVE};
use crate::device::machine::{Machine, Mounted, skipped, tool, until};

const MIB: u64 = 1 << 20;

/// Not a test of its own: the server's process.
#[test]
fn server() {
    let Ok(image) = std::env::var(SERVE) else { return };
    // The error output is the log of the test that started this process.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // The test runner has begun a line.
    writeln!(std::io::stdout()).unwrap();
    let served = netram_attach::serve(|| CachedDevice::open(Path::new(&image)).map(CachedDevice::shared));
    served.expect("the server failed");
}

#[test]
fn what_is_written_to_the_device_is_the_volumes_and_zeroed_ranges_read_as_zeros() {
    let mut machine = match Machine::new(16 * MIB) {
        Ok(machine) => machine,
        Err(missing) => {
            return skipped(
                "what_is_written_to_the_device_is_the_volumes_and_zeroed_ranges_read_as_zeros",
                &missing,
            );
        }
    };
    for block_bytes in [512, 4096] {
        machine.attach(block_bytes);
        let mut device = File::options()
            .read(true)
            .write(true)
            .open(machine.device())
            .unwrap();
        assert_eq!(device.seek(SeekFrom::End(0)).unwrap(), 16 * MIB);
        let pattern: Vec<u8> = (0..3 * MIB).map(|at| (at % 251) as u8).collect();
        device.write_all_at(&pattern, 2 * MIB + 512).unwrap();
        device.sync_all().unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&device, punch, 3 * MIB, MIB).unwrap();
        fallocate(&device, FallocateFlags::ZERO_RANGE, 4 * MIB, 8192).unwrap();
        drop(device);
        machine.detach();
        // The image has exactly the flushed data, and detaching flushes.
        let mut expected = vec![0; 16 * MIB as usize];
        expected[2 * MIB as usize + 512..][..pattern.len()].copy_from_slice(&pattern);
        expected[3 * MIB as usize..][..MIB as usize + 8192].fill(0);
        assert!(fs::read(machine.image()).unwrap() == expected, "{block_bytes}");
        machine.attach(block_bytes);
        let mut found = Vec::new();
        File::open(machine.device())
            .unwrap()
            .read_to_end(&mut found)
            .unwrap();
        assert!(found == expected, "{block_bytes}");
        machine.detach();
    }
}

#[test]
fn flushes_and_forced_writes_of_ext4_and_of_programs_arrive_at_the_volume() {
    let mut machine = match Machine::new(64 * MIB) {
        Ok(machine) => machine,
        Err(missing) => {
            return skipped(
                "flushes_and_forced_writes_of_ext4_and_of_programs_arrive_at_the_volume",
                &missing,
            );
        }
    };
    machine.attach(4096);
    // An O_DSYNC write is sent with FUA, or followed by a flush.
    let forced = (OFlags::DSYNC | OFlags::DIRECT).bits().cast_signed();
    let device = OpenOptions::new()
        .write(true)
        .custom_flags(forced)
        .open(machine.device())
        .unwrap();
    let aligned = Aligned([7; 4096]);
    for block in 0..8 {
        let before = machine.flushes();
        device.write_all_at(&aligned.0, block * 4096).unwrap();
        assert!(
            machine.flushes() > before,
            "O_DSYNC write {block} was answered without a flush"
        );
        let mut found = [0; 4096];
        File::open(machine.image())
            .unwrap()
            .read_exact_at(&mut found, block * 4096)
            .unwrap();
        assert!(
            found == aligned.0,
            "block {block} was not in the image when its write was answered"
        );
    }
    drop(device);
    machine.make_ext4();
    let mounted = machine.mount();
    for number in 0..10 {
        let path = mounted.at().join(format!("file-{number}"));
        let mut file = File::create_new(&path).unwrap();
        file.write_all(&[number; 5000]).unwrap();
        let before = machine.flushes();
        file.sync_all().unwrap();
        assert!(machine.flushes() > before, "fsync {number} did not arrive");
        let before = machine.flushes();
        file.write_all(b"more").unwrap();
        file.sync_data().unwrap();
        assert!(machine.flushes() > before, "fdatasync {number} did not arrive");
    }
    mounted.unmount();
    machine.check_ext4();
    machine.detach();
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn a_killed_server_loses_no_file_whose_fsync_returned() {
    let mut machine = match Machine::new(64 * MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped("a_killed_server_loses_no_file_whose_fsync_returned", &missing),
    };
    machine.attach(4096);
    machine.make_ext4();
    let mut synced = 0;
    for round in 0..3 {
        let mounted = machine.mount();
        let (stop, directory) = (Arc::new(AtomicBool::new(false)), mounted.at().to_path_buf());
        let writing = {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || write_until(&stop, &directory, synced))
        };
        until("files have been synced", || {
            mounted.at().join(file_name(synced + 20 + 7 * round)).exists()
        });
        machine.kill_server();
        // Every write and sync now fails, so the writer ends by itself.
        synced = writing.join().expect("the writer panicked");
        stop.store(true, Ordering::Relaxed);
        mounted.unmount();
        machine.wait_for_loss();
        machine.attach(4096);
        // After the journal is replayed, the file system must be clean.
        machine.mount().unmount();
        machine.check_ext4();
        let mounted = machine.mount();
        for number in 0..synced {
            let found = fs::read(mounted.at().join(file_name(number)));
            let found =
                found.unwrap_or_else(|error| panic!("round {round}, of {synced} files {number}: {error}"));
            assert!(
                found == content(number),
                "round {round}: file {number} has other bytes"
            );
        }
        mounted.unmount();
    }
    assert!(synced > 60);
    machine.detach();
}

/// Writes and syncs files and their directory until a step fails. Returns the number of the first file that
/// may be missing.
fn write_until(stop: &AtomicBool, directory: &Path, from: u64) -> u64 {
    let mut number = from;
    while !stop.load(Ordering::Relaxed) {
        let written = File::create(directory.join(file_name(number)))
            .and_then(|mut file| {
                file.write_all(&content(number))?;
                file.sync_all()
            })
            .and_then(|()| File::open(directory)?.sync_all());
        if written.is_err() {
            break;
        }
        number += 1;
    }
    number
}

fn file_name(number: u64) -> String {
    format!("{number:06}")
}

fn content(number: u64) -> Vec<u8> {
    let length = 1 + number * 997 % 9000;
    (0..length).map(|at| (at * 31 + number * 17) as u8).collect()
}

#[test]
fn a_mounted_device_is_not_let_go_and_a_second_device_is_refused() {
    let mut machine = match Machine::new(64 * MIB) {
        Ok(machine) => machine,
        Err(missing) => {
            return skipped(
                "a_mounted_device_is_not_let_go_and_a_second_device_is_refused",
                &missing,
            );
        }
    };
    machine.attach(4096);
    assert_eq!(
        fs::canonicalize(&machine.record().link).unwrap(),
        machine.device(),
        "the link must lead to the device"
    );
    let refused = machine
        .try_attach(4096)
        .expect_err("a volume must have only one device");
    assert!(refused.contains("already attached"), "{refused}");
    machine.make_ext4();
    let mounted = machine.mount();
    let users = machine
        .try_detach()
        .expect_err("a mounted device must not be released");
    assert_eq!(users, [DeviceUser::Mount(mounted.at().to_path_buf())]);
    // It works as before.
    fs::write(mounted.at().join("file"), "content").unwrap();
    mounted.unmount();
    let link = machine.record().link;
    machine.detach();
    assert!(link.symlink_metadata().is_err(), "the link was not removed");
}

#[test]
fn a_server_that_refuses_says_why_and_leaves_nothing() {
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped("a_server_that_refuses_says_why_and_leaves_nothing", &missing),
    };
    fs::remove_file(machine.image()).unwrap();
    let refused = machine.try_attach(4096).expect_err("the image does not exist");
    assert!(refused.contains("No such file"), "{refused}");
    fs::write(machine.image(), vec![0; MIB as usize]).unwrap();
    let refused = machine
        .try_attach(1234)
        .expect_err("1234 is not a valid block size");
    assert!(refused.contains("1234"), "{refused}");
    machine.attach(4096);
    machine.detach();
}

#[test]
fn a_device_that_cannot_have_its_link_is_taken_back_with_its_server() {
    const NAME: &str = "a_device_that_cannot_have_its_link_is_taken_back_with_its_server";
    // The server had been left running, with a record.
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    fs::create_dir_all(machine.link()).unwrap();
    let refused = machine
        .try_attach(4096)
        .expect_err("a directory is at the link's path");
    assert!(refused.contains("belongs here"), "{refused}");
    assert_eq!(machine.servers(), 0);
    fs::remove_dir(machine.link()).unwrap();
    machine.attach(4096);
    assert_eq!(machine.servers(), 1);
    machine.detach();
    assert_eq!(machine.servers(), 0);
}

#[test]
fn letting_a_device_go_waits_for_no_server() {
    const NAME: &str = "letting_a_device_go_waits_for_no_server";
    // The supervisor's only thread had waited, so it neither handled signals nor noticed a server's end.
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    machine.attach(4096);
    let server = machine.record().server;
    machine.stop_server();
    // The data is in the kernel's memory, and cannot reach the server while that is stopped.
    let device = OpenOptions::new().write(true).open(machine.device()).unwrap();
    device.write_all_at(&[7; 4096], 0).unwrap();
    drop(device);
    // If a wait happens after all, it ends with this.
    let end = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(60));
        server.signal(Signal::CONT)
    });
    for _ in 0..20 {
        machine.begin_to_detach();
        assert!(!end.is_finished(), "the release waited for the server");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    machine.signal_server(Signal::CONT);
    machine.detach();
    let image = fs::read(machine.image()).unwrap();
    assert!(image[..4096] == [7; 4096], "the written data is lost");
}

#[test]
fn a_server_that_is_told_to_end_serves_until_its_device_is_let_go() {
    const NAME: &str = "a_server_that_is_told_to_end_serves_until_its_device_is_let_go";
    // When a machine stops, all processes are told to end before file systems are unmounted; unwritten data
    // of the file systems was lost.
    let mut machine = match Machine::new(64 * MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    machine.attach(4096);
    machine.make_ext4();
    let mounted = machine.mount();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        fs::write(mounted.at().join("file"), format!("{signal:?}")).unwrap();
        machine.signal_server(signal);
        tool("sync", &["-f", &mounted.at().display().to_string()]).expect("the device must still work");
    }
    mounted.unmount();
    machine.check_ext4();
    // The detach at the end checks that its server ends without an error.
    machine.detach();
}

#[test]
fn a_device_whose_supervisor_is_gone_serves_until_its_file_system_is_unmounted() {
    let mut machine = match Machine::new(64 * MIB) {
        Ok(machine) => machine,
        Err(missing) => {
            return skipped(
                "a_device_whose_supervisor_is_gone_serves_until_its_file_system_is_unmounted",
                &missing,
            );
        }
    };
    machine.attach(4096);
    machine.make_ext4();
    let mounted: Mounted = machine.mount();
    let (device, server) = machine.leave();
    fs::write(mounted.at().join("file"), "content").unwrap();
    tool("sync", &["-f", &mounted.at().display().to_string()]).expect("the device must still work");
    mounted.unmount();
    until("the server has ended", || !server.is_alive());
    let backing = backing_file(&device);
    until("the loop device is free", || !backing.exists());
    machine.attach(4096);
    machine.check_ext4();
    machine.detach();
}

#[test]
fn two_devices_are_not_taken_for_one() {
    // `mkfs.btrfs` had taken the second device for the mounted first one, because their files had the same
    // name.
    let machines = (0..2).map(|_| Machine::new(16 * MIB));
    let mut machines = match machines.collect::<Result<Vec<_>, _>>() {
        Ok(machines) => machines,
        Err(missing) => return skipped("two_devices_are_not_taken_for_one", &missing),
    };
    machines.iter_mut().for_each(|machine| machine.attach(4096));
    let files = machines.iter().map(|machine| {
        let file = backing_file(&machine.device());
        fs::read_to_string(file).expect("the kernel shows its loop devices")
    });
    let files = files.collect::<Vec<_>>();
    assert_ne!(files[0], files[1]);
    machines.iter_mut().for_each(Machine::detach);
}

/// File in which the kernel shows the file under a loop device.
fn backing_file(device: &Path) -> PathBuf {
    let name = device.file_name().expect("a device has a name");
    Path::new("/sys/block").join(name).join("loop/backing_file")
}
