//! Real devices: a volume is attached, a file system made on it, used, cut off, and checked.
//!
//! The server is this test binary again ([`server`]); its device is a file behind a write cache that dies
//! with the process ([`cache`]), so whatever survives a killed server was flushed. Needs root, FUSE and loop
//! devices; without them each test says `SKIPPED` and why. Whatever a test has started or mounted is taken
//! away when it ends, and nothing waits for ever.

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
    // For the test that started it: its error output is that test's log.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    // The test runner has begun a line.
    writeln!(std::io::stdout()).unwrap();
    let served = netram_attach::serve(|| CachedDevice::open(Path::new(&image)).map(CachedDevice::shared));
    served.expect("the server ends well");
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
        // What the image has is what was flushed, and detaching flushes.
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
    // A write that says O_DSYNC is one with FUA, or one followed by a flush.
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
        until("files are being synced", || {
            mounted.at().join(file_name(synced + 20 + 7 * round)).exists()
        });
        machine.kill_server();
        // Each write and sync now fails; the writer ends by itself.
        synced = writing.join().expect("the writer ends");
        stop.store(true, Ordering::Relaxed);
        mounted.unmount();
        machine.wait_for_loss();
        machine.attach(4096);
        // The journal is replayed; then the file system must be clean.
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

/// Writes and syncs files and their directory until something fails: the number of the first that may be
/// missing.
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
        "the link leads to the device"
    );
    let refused = machine.try_attach(4096).expect_err("one volume, one device");
    assert!(refused.contains("attached already"), "{refused}");
    machine.make_ext4();
    let mounted = machine.mount();
    let users = machine.try_detach().expect_err("it is mounted");
    assert_eq!(users, [DeviceUser::Mount(mounted.at().to_path_buf())]);
    // It works on as before.
    fs::write(mounted.at().join("file"), "content").unwrap();
    mounted.unmount();
    let link = machine.record().link;
    machine.detach();
    assert!(link.symlink_metadata().is_err(), "the link stays");
}

#[test]
fn a_server_that_refuses_says_why_and_leaves_nothing() {
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped("a_server_that_refuses_says_why_and_leaves_nothing", &missing),
    };
    fs::remove_file(machine.image()).unwrap();
    let refused = machine.try_attach(4096).expect_err("there is no image");
    assert!(refused.contains("No such file"), "{refused}");
    fs::write(machine.image(), vec![0; MIB as usize]).unwrap();
    let refused = machine.try_attach(1234).expect_err("no block has 1234 bytes");
    assert!(refused.contains("1234"), "{refused}");
    machine.attach(4096);
    machine.detach();
}

#[test]
fn a_device_that_cannot_have_its_link_is_taken_back_with_its_server() {
    const NAME: &str = "a_device_that_cannot_have_its_link_is_taken_back_with_its_server";
    // The server was left running, and a record of it stood.
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    fs::create_dir_all(machine.link()).unwrap();
    let refused = machine
        .try_attach(4096)
        .expect_err("a directory is in the link's place");
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
    // It did, in the only thread of a supervisor, which then neither heard signals nor noticed a server's
    // end.
    let mut machine = match Machine::new(MIB) {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    machine.attach(4096);
    let server = machine.record().server;
    machine.stop_server();
    // In the kernel's memory, and on its way to the server for as long as that stands still.
    let device = OpenOptions::new().write(true).open(machine.device()).unwrap();
    device.write_all_at(&[7; 4096], 0).unwrap();
    drop(device);
    // Should it wait after all: then for this.
    let end = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_secs(60));
        server.signal(Signal::CONT)
    });
    for _ in 0..20 {
        machine.begin_to_detach();
        assert!(!end.is_finished(), "it was waited for");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    machine.signal_server(Signal::CONT);
    machine.detach();
    let image = fs::read(machine.image()).unwrap();
    assert!(image[..4096] == [7; 4096], "what was written is lost");
}

#[test]
fn a_server_that_is_told_to_end_serves_until_its_device_is_let_go() {
    const NAME: &str = "a_server_that_is_told_to_end_serves_until_its_device_is_let_go";
    // When a machine stops, everybody is told to end before file systems are unmounted: what they had not
    // written was lost.
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
        tool("sync", &["-f", &mounted.at().display().to_string()]).expect("the device still serves");
    }
    mounted.unmount();
    machine.check_ext4();
    // Its server ends well, as this finds.
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
    tool("sync", &["-f", &mounted.at().display().to_string()]).expect("the device still serves");
    mounted.unmount();
    until("the server ends", || !server.is_alive());
    let backing = backing_file(&device);
    until("the loop device is free", || !backing.exists());
    machine.attach(4096);
    machine.check_ext4();
    machine.detach();
}

#[test]
fn two_devices_are_not_taken_for_one() {
    // `mkfs.btrfs` said that the second was mounted when the first was: their files had one name.
    let machines = (0..2).map(|_| Machine::new(16 * MIB));
    let mut machines = match machines.collect::<Result<Vec<_>, _>>() {
        Ok(machines) => machines,
        Err(missing) => return skipped("two_devices_are_not_taken_for_one", &missing),
    };
    machines.iter_mut().for_each(|machine| machine.attach(4096));
    let files = machines.iter().map(|machine| {
        let file = backing_file(&machine.device());
        fs::read_to_string(file).expect("the kernel tells of its loop devices")
    });
    let files = files.collect::<Vec<_>>();
    assert_ne!(files[0], files[1]);
    machines.iter_mut().for_each(Machine::detach);
}

/// Where the kernel says what is under a loop device.
fn backing_file(device: &Path) -> PathBuf {
    let name = device.file_name().expect("a device has a name");
    Path::new("/sys/block").join(name).join("loop/backing_file")
}
