//! Operations on a volume while a file system on it is in use: its server is killed, it grows, it is detached
//! and attached. fio writes at the same time and verifies what it reads; it must not notice.

use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::users::file_system::FileSystem;
use crate::users::fio::Job;
use crate::users::process::{UserProcess, tool, until};
use crate::users::rounds::Rounds;
use crate::users::testbed::UsersTestbed;

/// Servers that may die within ten minutes are eight; then the device gives errors.
const KILLS: u32 = 4;
const ROUND: Duration = Duration::from_secs(1);
/// Writes after which fio is surely at work again.
const BEGUN: u64 = 50;
const MEBIBYTE: u64 = 1 << 20;
/// As large as a volume becomes.
const GROWN: u64 = 1024 * MEBIBYTE;

#[test]
#[ignore = "minutes: make users"]
fn fio_does_not_notice_that_the_server_of_a_volume_with_any_is_killed_over_and_over() {
    let test = "fio_does_not_notice_that_the_server_of_a_volume_with_any_is_killed_over_and_over";
    if let Err(missing) = servers_can_be_replaced() {
        return crate::users::testbed::skipped(test, &missing);
    }
    let Some(site) = UsersTestbed::with_any(test, FileSystem::Ext4, &["fio"]) else {
        return;
    };
    let mut rounds = Rounds::new(1);
    let mut kills = 0;
    while rounds.another() {
        let fio = start(&site);
        for _ in 0..KILLS {
            rounds.let_it_run(ROUND);
            site.kill_server();
            written(&site, BEGUN);
            kills += 1;
        }
        // Asked to stop it ends with an error, unless it has found none.
        fio.stop_with(Signal::INT, &[0, FIO_STOPPED]).unwrap();
        site.reattach();
    }
    eprintln!("{kills} servers killed");
    site.close();
}

#[test]
#[ignore = "minutes: make users"]
fn a_volume_grows_under_a_file_system_in_use() {
    let test = "a_volume_grows_under_a_file_system_in_use";
    let Some(site) = UsersTestbed::new(test, FileSystem::Xfs, &["fio", "xfs_growfs"]) else {
        return;
    };
    let mut rounds = Rounds::new(3);
    let mut bytes = site.bytes();
    let fio = start(&site);
    while rounds.another() {
        rounds.let_it_run(ROUND);
        // Beyond its bound it is only let run.
        if bytes < GROWN {
            bytes += (16 + rounds.random.below(48)) * MEBIBYTE;
            site.grow(bytes);
            assert_eq!(site.bytes(), bytes, "the device is as large as the volume");
            let before = site.free_blocks();
            // Not ext4: that one needs CAP_SYS_RESOURCE for it, which containers may lack.
            tool("xfs_growfs", &["-d", site.mounted().to_str().unwrap()]).unwrap();
            assert!(
                site.free_blocks() > before,
                "the file system has room that it had not"
            );
        }
        written(&site, BEGUN);
    }
    fio.stop_with(Signal::INT, &[0, FIO_STOPPED]).unwrap();
    eprintln!("{} rounds, {} MiB at the end", rounds.done(), bytes / MEBIBYTE);
    site.reattach();
    site.close();
}

#[test]
#[ignore = "minutes: make users"]
fn a_volume_is_detached_and_attached_over_and_over() {
    let test = "a_volume_is_detached_and_attached_over_and_over";
    let Some(site) = UsersTestbed::new(test, FileSystem::Ext4, &["fio"]) else {
        return;
    };
    let mut rounds = Rounds::new(3);
    while rounds.another() {
        let whole = Job::Whole {
            seed: rounds.random.next(),
        };
        whole.run(&site.mounted(), &[]).unwrap();
        for _ in 0..=rounds.random.below(3) {
            site.reattach();
        }
        whole.run(&site.mounted(), &["--verify_only"]).unwrap();
    }
    eprintln!("{} rounds", rounds.done());
    site.close();
}

/// How fio ends when it was asked to and had met no error.
const FIO_STOPPED: i32 = 128;

/// Synchronous blocks at random places, each read again and verified soon after, until it is stopped.
fn start(site: &UsersTestbed) -> UserProcess {
    let mut command = Command::new("fio");
    command
        .current_dir(site.mounted())
        .args([
            "--name=on",
            "--filename=on",
            "--size=16M",
            "--bs=4k",
            "--ioengine=psync",
        ])
        .args(["--direct=1", "--sync=dsync", "--rw=randwrite", "--verify=crc32c"])
        .args([
            "--verify_fatal=1",
            "--verify_backlog=64",
            "--time_based",
            "--runtime=7200",
        ])
        .stdout(Stdio::null());
    let running = UserProcess::start(&mut command);
    written(site, BEGUN);
    running
}

/// Waits until the device has completed this many more writes.
fn written(site: &UsersTestbed, writes: u64) {
    let before = site.writes();
    until("fio writes on", || site.writes() > before + writes);
}

/// Whether the kernel gives another server what the dead one had not answered.
fn servers_can_be_replaced() -> Result<(), String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|other: char| !other.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    match (next(), next()) >= (Some(6), Some(9)) {
        true => Ok(()),
        false => Err(format!("Linux {} is older than 6.9", release.trim())),
    }
}
