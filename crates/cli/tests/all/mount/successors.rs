//! The supervisor of a mount's server.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Signal, kill_process};

use super::refusals::{Tracer, cannot_trace};
use super::{MountFixture, cannot_mount, wait_until};
use crate::common::{skipped, start};

/// Whether this kernel sends requests again that a dead server left unanswered (Linux 6.9).
fn cannot_survive() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|number| number.parse::<u32>().ok());
    let known = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9);
    if !known {
        skipped("a mount outlives its server since Linux 6.9");
    }
    !known
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The supervisor keeps no program from its files.
#[test]
fn a_server_whose_supervisor_was_killed_goes_on_until_it_is_detached() {
    if cannot_mount() || cannot_survive() {
        return;
    }
    let mut mounted = MountFixture::new("alone", 1, "4MiB");
    assert_eq!(mounted.unmount().code, 0);
    let mut attach = mounted.program();
    attach
        .args(["mount", "attach", "--restarts", "8"])
        .arg(mounted.dir())
        .arg("--on")
        .arg(mounted.journal());
    let mut supervisor = start(attach.stdout(Stdio::null()).stderr(Stdio::null()));
    wait_until("it is watched", || has_fuse(supervisor.id()));
    let server = mounted.server_id();
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    fs::write(mounted.dir().join("file"), b"later").unwrap();
    File::open(mounted.dir().join("file"))
        .unwrap()
        .sync_all()
        .unwrap();
    assert_eq!(mounted.server_id(), server);
    // A program that uses it is not disturbed.
    let used = File::open(mounted.dir().join("file")).unwrap();
    let error = mounted.refused();
    assert!(error.contains("whose supervisor was killed"), "{error}");
    drop(used);
    mounted.mount();
    assert_eq!(fs::read(mounted.dir().join("file")).unwrap(), b"later");
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(fs::read(mounted.dir().join("file")).unwrap(), b"later");
}

/// Whether a process has the kernel's end of a mount.
fn has_fuse(process: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    files
        .flatten()
        .any(|file| fs::read_link(file.path()).is_ok_and(|path| path == Path::new("/dev/fuse")))
}

/// Another server would not be told of the failed sync, and would believe that the disk has everything.
#[test]
fn a_server_that_saw_a_sync_fail_gets_no_successor() {
    if cannot_mount() || cannot_survive() || cannot_trace() {
        return;
    }
    let mut mounted = MountFixture::new("failed", 1, "4MiB");
    assert_eq!(mounted.unmount().code, 0);
    mounted.mount_with(&words(&["--checkpoint", "50ms", "--restarts", "8"]));
    let server = mounted.server_id();
    // Every one: a failed sync of the catalog alone is tried again.
    let tracer = Tracer::attach(&mounted, "fsync", "EIO", "1+");
    let refuses = |number: u32| {
        let path = mounted.dir().join(format!("file-{number}"));
        fs::write(&path, b"bytes").is_err() || File::open(&path).is_ok_and(|file| file.sync_all().is_err())
    };
    let mut numbers = 0..;
    wait_until("no change is accepted", || refuses(numbers.next().unwrap()));
    drop(tracer);
    kill_process(server, Signal::KILL).unwrap();
    let mut supervisor = mounted.server.take().unwrap();
    let mut error = String::new();
    supervisor
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut error)
        .unwrap();
    assert!(!supervisor.wait().unwrap().success());
    assert!(error.contains("the disk failed, and the process"), "{error}");
    assert!(fs::read_dir(mounted.dir()).is_err(), "programs get errors");
    mounted.mount();
    assert_eq!(mounted.unmount().code, 0);
}
