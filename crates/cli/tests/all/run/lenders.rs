//! Lenders that die under a program, and lenders that are full.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{RunTestbed, compiled, finish, library, netram, start, text};
use crate::common::available;

/// A lender that is silent for this long is given up.
const SILENCE: Duration = Duration::from_nanos(netram_far_machine::limit::DEPOSIT_TIMEOUT.0);

/// A program that has written its memory, and waits for a word before it looks.
pub(super) struct Waiting {
    pub(super) child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    pub(super) fn start(site: &RunTestbed, options: &[&str], heap: &Path) -> Waiting {
        Waiting::start_as("waits", site, options, heap)
    }

    pub(super) fn start_as(part: &str, site: &RunTestbed, options: &[&str], heap: &Path) -> Waiting {
        let mut command = site.run("1MiB", options, heap);
        command.arg(part).stdin(Stdio::piped());
        let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "written\n");
        Waiting { child, out }
    }

    /// Tells it to look.
    pub(super) fn tell(&mut self) {
        // If it has ended, its output below says so.
        let _ = self.child.stdin.take().unwrap().write_all(b"look\n");
    }

    /// Has the program read its pages. Returns its exit status, its result, and its messages.
    pub(super) fn look(mut self) -> (ExitStatus, String, String) {
        self.tell();
        self.end()
    }

    /// Returns the same for a program that was told to read already.
    pub(super) fn end(mut self) -> (ExitStatus, String, String) {
        let mut found = String::new();
        self.out.read_line(&mut found).unwrap();
        let ended = self.child.wait_with_output().unwrap();
        (ended.status, found, text(&ended.stderr))
    }
}

#[test]
fn with_two_copies_a_lender_that_is_killed_costs_the_program_nothing() {
    let Some(mut site) = RunTestbed::new("killed", 2, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let waiting = Waiting::start(&site, &[], &heap);
    settled(&site);
    site.lenders[1].stop(Signal::KILL);
    let (status, found, said) = waiting.look();
    assert_eq!((status.code(), found.as_str()), (Some(0), "same\n"), "{said}");
}

/// A dead lender is noticed after 5 s; the other one is asked long before. A busy machine may take as long
/// for its own reasons, but hardly three times.
#[test]
fn with_two_copies_a_lender_that_stands_still_is_not_waited_for() {
    let Some(site) = RunTestbed::new("still", 2, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let quick = (0..3).any(|_| {
        let (took, said) = run_beside_a_still_lender(&site, &heap);
        eprintln!("{took:?} {said}");
        said.is_empty() && took < SILENCE / 2
    });
    assert!(quick, "it waited for the lender each time");
}

/// Runs a program whose second lender stands still for a while; returns how long it took then, and what it
/// printed to standard error.
fn run_beside_a_still_lender(site: &RunTestbed, heap: &Path) -> (Duration, String) {
    let waiting = Waiting::start_as("peeks", site, &[], heap);
    settled(site);
    let lender = Pid::from_raw(site.lenders[1].id().cast_signed()).unwrap();
    kill_process(lender, Signal::STOP).unwrap();
    let since = Instant::now();
    let (status, found, said) = waiting.look();
    let took = since.elapsed();
    kill_process(lender, Signal::CONT).unwrap();
    assert_eq!((status.code(), found.as_str()), (Some(0), "same\n"), "{said}");
    (took, said)
}

/// Its one copy of each page moves before the lender gives the memory back.
#[test]
fn a_lender_whose_machine_is_short_of_memory_costs_the_program_nothing() {
    let Some(mut site) = RunTestbed::new("short", 2, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let address = site.lenders[0].address.clone();
    let proc = site.directory.path().to_owned();
    available(&proc, 3 << 29);
    site.lenders[0].stop(Signal::KILL);
    let watch = ["--keep-free", "1GiB", "--proc", proc.to_str().unwrap()];
    let listen = ["--listen", &address, "--insecure", "--deposits", "64MiB"];
    let options = [listen.as_slice(), &watch].concat();
    site.lenders[0] = super::LenderProcess::with_memory("64MiB", "run-short-again", &options);
    let waiting = Waiting::start(&site, &["--copies", "1"], &heap);
    let until = Instant::now() + Duration::from_secs(60);
    let held = |lender| site.status(lender)["deposits"][0]["held"].as_u64().unwrap_or(0);
    while held(0) + held(1) < 7 * 256 {
        assert!(Instant::now() < until, "{} and {}", held(0), held(1));
    }
    assert!(held(0) > 0, "or nothing could move");
    available(&proc, 0);
    while site.status(0)["memory"]["given_back"] != 64 << 20 {
        assert!(Instant::now() < until, "{}", site.status(0));
    }
    assert_eq!(site.status(0)["memory"]["deposits"], 0);
    let (status, found, said) = waiting.look();
    assert_eq!((status.code(), found.as_str()), (Some(0), "same\n"), "{said}");
}

#[test]
fn a_file_on_a_disk_does_for_lenders() {
    // Asks whether page faults are served here.
    let Some(site) = RunTestbed::new("spill", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let spills = |size: &str| {
        let mut command = netram();
        command
            .env_remove("NETRAM_LENDERS")
            .args(["run", "--local=2MiB", "--spill-size", size, "--spill"])
            .arg(site.directory.path())
            .arg(format!("--report={}", site.report().display()))
            .arg("--")
            .arg(&heap)
            .arg("works")
            .env("NETRAM_FARRUN", library());
        finish(&mut command)
    };
    let ran = spills("64MiB");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(ran.out, "all is as it was written\n");
    assert!(site.told("fetched") > 50);
    let ran = spills("1");
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(
        ran.err
            .contains("the maximum size of the spill file; it must be at least a page"),
        "{}",
        ran.err
    );
}

/// New allocations are refused then; a first write to one that it had before waits for room.
#[test]
fn without_room_at_lenders_allocation_fails_or_waits_with_a_message() {
    let Some(site) = RunTestbed::new("full", 1, "4MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let mut command = site.run("1MiB", &["--copies=1", "--threshold=1KiB"], &heap);
    let mut child = start(
        command
            .arg("hoards")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = said.find(|line| {
        line.as_ref()
            .is_ok_and(|line| line.contains("no lender has room"))
    });
    assert!(told.is_some(), "it ended without a word");
    // By this `timeout` ends the program as well.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(!text(&ended.stdout).contains("endless"), "{ended:?}");
}

/// Waits until both lenders have all that the program wrote: what came to one before the other was there is
/// mended a little later.
pub(super) fn settled(site: &RunTestbed) {
    // 8 MiB, of which 1 is here.
    const PAGES: u64 = 7 * 256;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let held = |lender: usize| {
            let report = site.status(lender);
            let deposits = report["deposits"].as_array().unwrap();
            let held = deposits.iter().filter_map(|deposit| deposit["held"].as_u64());
            held.max().unwrap_or(0)
        };
        if held(0) == held(1) && held(0) >= PAGES {
            return;
        }
        assert!(Instant::now() < deadline, "{} and {}", held(0), held(1));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program stopped in the middle, and waited for room for ever.
#[test]
fn lenders_that_are_too_small_are_reported_before_the_program_starts() {
    let Some(site) = RunTestbed::new("small", 2, "16MiB") else {
        return;
    };
    let run = |options: &[&str]| finish(&mut site.run("64MiB", options, std::path::Path::new("true")));
    let small = run(&[]);
    assert_eq!(small.code, 0, "{}", small.err);
    for part in ["lenders have room for", "in 2 copies", "--spill"] {
        assert!(small.err.contains(part), "{}", small.err);
    }
    let enough = run(&["--size", "32MiB"]);
    assert!(!enough.err.contains("have room for"), "{}", enough.err);
}
