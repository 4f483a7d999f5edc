//! The supervisor of a mount's server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::limits::{AS_USER, USER, cannot_be_user};
use super::refusals::{Tracer, cannot_trace};
use super::{MountFixture, cannot_mount, wait_until};
use crate::common::disk::FailingDisk;
use crate::common::mounted::cannot_survive;
use crate::common::{finish, netram, ran, skipped, start};

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

/// The kernel told another program of the failed write, and the server was killed before it looked. One that
/// opened the disk anew was not told, and believed that it had everything.
#[test]
fn a_successor_learns_of_a_write_that_failed_before_it_began() {
    if cannot_mount() || cannot_survive() {
        return;
    }
    let Some(disk) = FailingDisk::new() else {
        return;
    };
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let (dir, journal) = (disk.at.join("dir"), place.path().join("journal"));
    fs::create_dir(&dir).unwrap();
    let mut attach = netram();
    attach.args(["mount", "attach", "--with-parent", "--checkpoint", "1h"]);
    attach.args(["--journal-size", "4MiB", "--restarts", "8"]);
    attach.arg(&dir).arg("--on").arg(&journal);
    let mut supervisor = start(attach.stdout(Stdio::null()).stderr(Stdio::piped()));
    wait_until("it is watched", || has_fuse(supervisor.id()));
    if let Err(why) = disk.fail() {
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        return skipped(format_args!("the disk's free blocks cannot be taken away: {why}"));
    }
    let bytes = vec![5; 400_000];
    fs::write(dir.join("file"), &bytes).unwrap();
    File::open(dir.join("file")).unwrap().sync_all().unwrap();
    let told = finish(Command::new("sync").arg("-f").arg(&disk.at));
    assert_ne!(told.code, 0, "the disk fails");
    // From here on every sync of a server that opens the disk anew succeeds.
    disk.mend();
    let lock = fs::read_to_string(journal.join("lock")).unwrap();
    kill_process(Pid::from_raw(lock.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    wait_until("the mount ends", || supervisor.try_wait().unwrap().is_some());
    let ended = ran(supervisor.wait_with_output().unwrap());
    assert_ne!(ended.code, 0);
    assert!(
        ended.err.contains("the disk failed, and the process"),
        "{}",
        ended.err
    );
    assert!(fs::read_dir(&dir).is_err(), "programs get errors");
    // ext4 wrote bytes again that way, and later read zeros in their place.
    let recovered = finish(netram().args(["mount", "recover"]).arg(&dir));
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(
        fs::read(dir.join("file")).unwrap() == bytes,
        "it has what was synced"
    );
}

#[test]
fn a_map_goes_on_with_another_server() {
    if cannot_mount() || cannot_survive() {
        return;
    }
    let words = ["--restarts", "8", "--restart-at-once"];
    let mut mounted = MountFixture::wrapped("maps", &[], None, &words);
    let dir = mounted.dir();
    fs::write(dir.join("mapped"), vec![1; 1 << 16]).unwrap();
    let mut mapper = Mapper::start(&dir.join("mapped"));
    for round in 2..10 {
        mounted.kill_server();
        mapper.write(round);
        assert_eq!(fs::read(dir.join("mapped")).unwrap(), vec![round; 1 << 16]);
    }
    drop(mapper);
    assert_eq!(mounted.unmount().code, 0);
    assert_eq!(fs::read(dir.join("mapped")).unwrap(), vec![9; 1 << 16]);
}

/// The kernel refuses other opens of a file that it reads itself, and another server would not know which.
#[test]
fn a_mount_whose_files_the_kernel_reads_has_no_successor() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::wrapped("passed", &[], None, &["--passthrough"]);
    let server = mounted.server.as_ref().unwrap().id();
    assert_eq!(mounted.server_id().as_raw_nonzero().get().cast_unsigned(), server);
    assert_eq!(mounted.unmount().code, 0);
    let mut both = mounted.program();
    both.args(["mount", "attach", "--passthrough", "--restarts", "1"]);
    let refused = finish(both.arg(mounted.dir()).arg("--on").arg(mounted.journal()));
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("leave out --passthrough or --restarts"),
        "{}",
        refused.err
    );
}

/// Fills a mapped file with a byte that it is told, and syncs the map.
const MAPPER: &str = r"
import mmap, sys
with open(sys.argv[1], 'r+b') as file, mmap.mmap(file.fileno(), 0) as all:
    for line in sys.stdin:
        all[:] = bytes([int(line)]) * len(all)
        all.flush()
        print('done', flush=True)
";

struct Mapper(Child, BufReader<ChildStdout>);

impl Mapper {
    fn start(path: &Path) -> Mapper {
        let mut command = Command::new("python3");
        command.args(["-c", MAPPER]).arg(path);
        let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let said = BufReader::new(child.stdout.take().unwrap());
        Mapper(child, said)
    }

    fn write(&mut self, byte: u8) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{byte}").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn the_mount_of_an_ordinary_user_outlives_its_server() {
    if cannot_mount() || cannot_survive() || cannot_be_user() {
        return;
    }
    let words = ["--restarts", "8", "--restart-at-once"];
    let mut mounted = MountFixture::wrapped("successor", &AS_USER, Some(USER), &words);
    let mut writer = Command::new(AS_USER[0]);
    writer
        .args(&AS_USER[1..])
        .args(["sh", "-c", WRITER])
        .current_dir("/");
    let mut writer = start(writer.env("DIR", mounted.dir()).stdout(Stdio::piped()));
    let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
    for _ in 0..8 {
        said.next().expect("it goes on").unwrap();
        mounted.kill_server();
    }
    said.next().expect("it goes on").unwrap();
    drop(said);
    writer.kill().unwrap();
    writer.wait().unwrap();
    wait_until("the writer's files are closed", || mounted.unmount().code == 0);
    let text = fs::read_to_string(mounted.dir().join("log")).unwrap();
    let numbers = text.lines().map(|line| line.parse::<usize>().unwrap());
    assert!(numbers.eq(1..=text.lines().count()), "each once");
    assert!(text.lines().count() > 8, "{text}");
}

/// Appends numbers to a file, and reports each that is synced.
const WRITER: &str = r#"
n=0
while n=$((n + 1)); echo $n >> "$DIR/log" && sync "$DIR/log"; do echo $n; done
"#;
