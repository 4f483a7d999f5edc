//! A log that grows while its process is killed, its disk fails or is full: the old log or the new one, and
//! nothing of what was committed is lost.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::process::{netram, tool};
use crate::faults::harness::{FaultsFixture, skipped};

/// The log at first; each attempt asks for as much more.
const STEP_BYTES: u64 = 64 * 1024;
/// The system calls by which a log changes on the disk.
const CALLS: [&str; 5] = ["ftruncate", "fallocate", "fsync", "pwrite64", "fdatasync"];
/// More calls of a kind than an attempt makes.
const CALLS_MAX: u64 = 200;

/// A log with one segment, and how many values were committed to it. Only processes of their own open it:
/// this one starts others all the time, which have its locks for a moment.
struct Grown<'p> {
    directory: &'p Path,
    values: u64,
}

impl Grown<'_> {
    fn new(directory: &Path) -> Grown<'_> {
        let grown = Grown { directory, values: 0 };
        let (log, segment) = (grown.log(), grown.path("data"));
        let flags = ["--log-size", "64KiB", "--segment", &segment, "--size", "1MiB"];
        grown.rvm(&[&["create", &log][..], &flags].concat());
        grown
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn log(&self) -> String {
        self.path("log")
    }

    /// Runs a subcommand that must go well.
    fn rvm(&self, arguments: &[&str]) -> String {
        let (code, said) = netram(&[&["rvm"][..], arguments].concat());
        assert_eq!(code, 0, "{arguments:?}: {said}");
        said
    }

    /// Commits one more value, which stays in the log, after a look at all the earlier ones.
    fn commit(&mut self) {
        let (log, segment, file) = (self.log(), self.path("data"), self.path("value"));
        let length = (8 * self.values).to_string();
        if self.values > 0 {
            let dumped = self.rvm(&["dump", &log, &segment, "--length", &length, "--hex"]);
            let bytes = dumped.lines().flat_map(|line| line.split_whitespace().skip(1));
            let bytes: Vec<String> = bytes.map(str::to_owned).collect();
            let values = (1..=self.values).flat_map(|value: u64| value.to_le_bytes());
            let expected: Vec<String> = values.map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(bytes, expected);
        }
        std::fs::write(&file, (self.values + 1).to_le_bytes()).unwrap();
        self.rvm(&["load", &log, &segment, &file, "--offset", &length]);
        self.values += 1;
    }

    fn capacity(&self) -> u64 {
        let shown: serde_json::Value =
            serde_json::from_str(&self.rvm(&["status", &self.log(), "--json"])).unwrap();
        shown["capacity"].as_u64().unwrap()
    }

    /// Tries to grow the log under the tracer. Returns whether it succeeded, and its output.
    fn grow_traced(&self, injection: &str, bytes: u64) -> (bool, String) {
        let call = injection.split(':').next().unwrap_or_default();
        let ran = Command::new("strace")
            .args(["-f", "-q", "-o", "/dev/null", "-e", "signal=none"])
            .args([
                "-e",
                &format!("trace={call}"),
                "-e",
                &format!("inject={injection}"),
            ])
            .arg(crate::common::program())
            .args(["rvm", "grow", &self.log(), "--size", &bytes.to_string()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        (ran.status.success(), said)
    }
}

fn tracer() -> Result<(), String> {
    let injection = "inject=fdatasync:error=EIO:when=1";
    tool("strace", &["-f", "-o", "/dev/null", "-e", injection, "true"]).map(drop)
}

#[test]
fn growing_is_killed_at_every_call_that_changes_the_disk() {
    if let Err(missing) = tracer() {
        return skipped("growing_is_killed_at_every_call_that_changes_the_disk", &missing);
    }
    let place = FaultsFixture::new();
    let mut log = Grown::new(place.disk());
    let (mut kept, mut became) = (0, 0);
    for call in CALLS {
        let mut nth = 1;
        loop {
            log.commit();
            let before = log.capacity();
            let after = before + STEP_BYTES;
            let (ended, said) = log.grow_traced(&format!("{call}:signal=KILL:when={nth}"), after);
            let found = log.capacity();
            match (ended, found) {
                (true, found) => assert_eq!(found, after, "{call} {nth}: {said}"),
                (false, found) if found == before => kept += 1,
                (false, found) if found == after => became += 1,
                _ => panic!("{call} {nth}: the log of {before} bytes has {found}, to have {after}"),
            }
            if ended {
                break;
            }
            nth += 1;
            assert!(nth < CALLS_MAX, "{call} goes on for ever");
        }
    }
    log.commit();
    assert!(
        kept > 20 && became > 0,
        "{kept} killed before, {became} after the last step"
    );
}

#[test]
fn a_sync_that_fails_while_a_log_grows_is_reported_and_nothing_is_lost() {
    if let Err(missing) = tracer() {
        return skipped(
            "a_sync_that_fails_while_a_log_grows_is_reported_and_nothing_is_lost",
            &missing,
        );
    }
    let place = FaultsFixture::new();
    let mut log = Grown::new(place.disk());
    let mut refusals = 0;
    for nth in 1..CALLS_MAX {
        log.commit();
        let (before, after) = (log.capacity(), log.capacity() + STEP_BYTES);
        let (ended, said) = log.grow_traced(&format!("fdatasync:error=EIO:when={nth}+"), after);
        assert!([before, after].contains(&log.capacity()));
        if ended {
            break;
        }
        assert!(
            said.contains("EIO") || said.contains("os error 5"),
            "{nth}: {said}"
        );
        refusals += 1;
    }
    log.commit();
    assert!(refusals > 5, "only {refusals} attempts met the error");
}

#[test]
fn a_full_disk_leaves_the_log_as_it_was() {
    let place = FaultsFixture::new();
    let disk = match SmallDisk::new(place.disk(), 16 << 20) {
        Ok(disk) => disk,
        Err(missing) => return skipped("a_full_disk_leaves_the_log_as_it_was", &missing),
    };
    let mut log = Grown::new(disk.root());
    log.commit();
    let filler = disk.fill();
    let (code, said) = netram(&["rvm", "grow", &log.log(), "--size", "4MiB"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("ENOSPC") && said.contains(&log.log()), "{said}");
    assert_eq!(log.capacity(), STEP_BYTES);
    log.commit();
    std::fs::remove_file(filler).unwrap();
    let (code, said) = netram(&["rvm", "grow", &log.log(), "--size", "4MiB"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(log.capacity(), 4 << 20);
    log.commit();
}
