//! The server of an attached volume hangs, or is replaced, and its supervisor still does everything else.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{LenderProcess, netram, start};
use crate::volume::restart::can_be_replaced;
use crate::volume::{
    Started, VolumeFixture, can_attach, check_files, kill, skipped, tool, until, write_synced,
};

fn signal(process: &Value, signal: Signal) {
    let number = i32::try_from(process.as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(number).unwrap(), signal).unwrap();
}

/// Stops a process, and waits until all its threads have stopped: a running thread goes on for a moment, and
/// might do what the test says cannot be done.
fn halt(process: &Value) {
    signal(process, Signal::STOP);
    let threads = PathBuf::from(format!("/proc/{process}/task"));
    until("it stands still", || {
        let mut threads = fs::read_dir(&threads).unwrap().flatten();
        threads.all(|thread| {
            let line = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name before it may have spaces and brackets.
            let state = line.rsplit_once(") ").map(|(_, state)| state);
            state.is_some_and(|state| state.starts_with('T'))
        })
    });
}

/// Attaches a volume that waits long for its lender, which has become its member.
fn patient_with_member(place: &VolumeFixture, name: &str) -> LenderProcess {
    let listen = ["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "ups-1"];
    let lender = LenderProcess::start(name, &listen);
    place.attach_with(&lender, &["--patience", "1h"]);
    until("the lender is a member", || {
        let members = &place.json(&["status", "db"])["members"];
        members.as_array().is_some_and(|members| !members.is_empty())
    });
    lender
}

/// Writes a block that the kernel keeps until the device is closed.
fn written(place: &VolumeFixture) -> File {
    let device = File::options()
        .write(true)
        .open(place.path("run/dev/db"))
        .unwrap();
    device.write_all_at(&[7; 4096], 8192).unwrap();
    device
}

/// A `netram volume detach` that runs.
fn detaching(place: &VolumeFixture) -> Started {
    let mut command = netram();
    command
        .args(["volume", "detach", "db"])
        .current_dir(place.directory.path());
    command.env("NETRAM_VOLUME_RUN", place.path("run"));
    Started(start(command.stdout(Stdio::null())))
}

/// Waits until the device is gone, and finds the block of [`written`] on the volume.
fn detached_with_its_writes(place: &VolumeFixture, mut detach: Started) {
    let mut ended = None;
    until("the device is gone", || {
        ended = detach.0.try_wait().unwrap();
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()), "{}", place.log());
    place.attach();
    let mut found = [0; 4096];
    let device = File::open(place.path("run/dev/db")).unwrap();
    device.read_exact_at(&mut found, 8192).unwrap();
    drop(device);
    assert!(found == [7; 4096], "what was written is lost");
    place.json(&["detach", "db"]);
}

#[test]
fn a_file_system_only_waits_when_its_server_hangs() {
    const NAME: &str = "a_file_system_only_waits_when_its_server_hangs";
    // The server hung forever, and so did all users of the device.
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "64MiB", "--journal-size", "16MiB"]);
    // On a busy machine a server that is well may be silent for some seconds.
    place.json(&["attach", "db", "--way", "fuse", "--hung-after", "8s"]);
    let (device, mount) = place.device_and_mount();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    let (stop, directory) = (AtomicBool::new(false), PathBuf::from(&mount));
    let written = || fs::read_dir(&directory).unwrap().count() as u64;
    let synced = std::thread::scope(|scope| {
        // Any error ends the test: users must not notice.
        let writing = scope.spawn(|| {
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                write_synced(&directory, number);
                number += 1;
            }
            number
        });
        until("files are being written", || {
            written() > 20 || writing.is_finished()
        });
        let hung = place.server();
        let command = fs::read(format!("/proc/{hung}/cmdline")).unwrap();
        assert!(
            command.starts_with(b"@"),
            "systemd would kill it before it unmounts"
        );
        halt(&hung);
        until("another server has taken over", || {
            let listed = place.json(&["list"]);
            let attached = &listed[0]["attached"];
            attached["server"]["id"] != hung && attached["restarts"] == 1 || writing.is_finished()
        });
        let reached = written();
        until("it goes on", || written() > reached + 20 || writing.is_finished());
        stop.store(true, Ordering::Relaxed);
        writing.join().unwrap()
    });
    let log = place.log();
    assert!(log.contains("seems to hang"), "{log}");
    tool("umount", &[&mount]).unwrap();
    check_files(&device, &mount, synced);
    place.json(&["detach", "db"]);
}

#[test]
fn a_device_detached_while_its_server_is_replaced_loses_no_write() {
    const NAME: &str = "a_device_detached_while_its_server_is_replaced_loses_no_write";
    // The supervisor closed the device, which waits for its writes, and the server died in that time: it was
    // not replaced, and the writes were lost.
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    let lender = patient_with_member(&place, "hung-a");
    // The kernel has the writes, and has not been asked to send them to the server.
    let device = written(&place);
    halt(&lender.id().into());
    let first = place.server();
    kill(&first);
    until("another server recovers", || place.server() != first);
    drop(device);
    let detach = detaching(&place);
    until("the supervisor has heard", || {
        place.log().contains("the device is to be detached")
    });
    let second = place.server();
    kill(&second);
    until("a third recovers", || place.server() != second);
    signal(&lender.id().into(), Signal::CONT);
    detached_with_its_writes(&place, detach);
}

#[test]
fn a_server_that_dies_while_its_device_is_detached_is_replaced() {
    const NAME: &str = "a_server_that_dies_while_its_device_is_detached_is_replaced";
    // The supervisor waited for the server in the only thread that could have replaced it: signals were not
    // heard, and what had been written and not synced was lost with the server.
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "16MiB", "--journal-size", "4MiB"]);
    place.attach();
    let first = place.server();
    halt(&first);
    let device = written(&place);
    drop(device);
    let detach = detaching(&place);
    // On a busy machine the server may count as silent before detaching begins.
    until("the supervisor says what it waits for", || {
        place.log().contains("the device is to be detached")
    });
    kill(&first);
    detached_with_its_writes(&place, detach);
}

#[test]
fn a_forced_detach_waits_for_no_recovery() {
    const NAME: &str = "a_forced_detach_waits_for_no_recovery";
    if let Err(missing) = can_attach().and_then(|()| can_be_replaced()) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    let lender = patient_with_member(&place, "hung-b");
    halt(&lender.id().into());
    let first = place.server();
    kill(&first);
    until("it is said who is waited for", || {
        place.log().contains(&lender.address) && place.log().contains("patience")
    });
    place.json(&["detach", "db", "--force"]);
    assert_eq!(place.json(&["list"]), Value::Array(Vec::new()));
    // An attach is refused with the same reason, after the given patience.
    let refused = place.refused(&["attach", "db", "--way", "fuse", "--patience", "1s"], 1);
    let told = |what: &str| refused.contains(what);
    assert!(
        told(&lender.address) && told("NETRAM_PATIENCE") && told("--accept-loss"),
        "{refused}"
    );
    signal(&lender.id().into(), Signal::CONT);
    let closed = place.json(&["status", "db"]);
    assert_eq!(closed["in_use"], false);
}
