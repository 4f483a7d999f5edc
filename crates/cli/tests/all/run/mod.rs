//! `netram run` on real programs with real lenders: at a quarter of their memory they do what they do without
//! it.
//!
//! Where this process may not have page faults served, these tests say so and leave.

mod children;
mod ends;
mod input;
mod last_words;
mod lenders;
mod limits;
mod metrics;
mod products;
mod programs;
mod unheard;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use crate::common::{LenderProcess, finish, netram, start};
use serde_json::Value;
use tempfile::TempDir;

/// The library that programs load.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| crate::common::library("netram-preload"))
}

/// A program of the directory of these tests, compiled.
fn compiled(name: &str, words: &[&str]) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/all/run/{name}.c"));
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror"]).args(words);
    command.arg("-o").arg(&program).arg(source).arg("-pthread");
    let ran = finish(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    (directory, program)
}

/// Lenders of a test, and the file in which runs report what they moved.
struct RunTestbed {
    lenders: Vec<LenderProcess>,
    directory: TempDir,
}

impl RunTestbed {
    /// Returns `None` if this process may not handle page faults; the test printed that it is skipped.
    fn new(name: &str, count: usize, memory: &str) -> Option<RunTestbed> {
        let directory = tempfile::tempdir().unwrap();
        let lender = |index: usize| {
            let address = format!("unix:{}/{index}.sock", directory.path().display());
            let listen = ["--listen", &address, "--insecure", "--deposits", memory];
            LenderProcess::with_memory(memory, &format!("run-{name}-{index}"), &listen)
        };
        let site = RunTestbed {
            lenders: (0..count).map(lender).collect(),
            directory,
        };
        let ran = finish(site.run("256KiB", &[], Path::new("true")).arg("word"));
        if ran.err.contains("may not handle page faults") || ran.err.contains("this kernel has no") {
            skipped(&ran.err);
            return None;
        }
        assert_eq!(ran.code, 0, "{}", ran.err);
        Some(site)
    }

    fn addresses(&self) -> String {
        let all: Vec<&str> = self
            .lenders
            .iter()
            .map(|lender| lender.address.as_str())
            .collect();
        all.join(",")
    }

    /// A program with so much local memory; its words are to be added.
    fn run(&self, local: &str, options: &[&str], program: &Path) -> Command {
        // What hangs must not keep the lenders' memory.
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", "120"]);
        let inner = netram();
        command.arg(inner.get_program());
        for (name, _) in inner.get_envs() {
            command.env_remove(name);
        }
        command
            .args(["run", "--insecure", "--local", local, "--lender"])
            .arg(self.addresses())
            .arg(format!("--report={}", self.report().display()))
            .args(options)
            .arg("--")
            .arg(program)
            .env("NETRAM_FARRUN", library())
            .stdin(Stdio::null());
        command
    }

    fn report(&self) -> PathBuf {
        self.directory.path().join("report")
    }

    /// Returns a lender's report.
    fn status(&self, lender: usize) -> Value {
        let ran = finish(netram().args([
            "lender",
            "status",
            "--insecure",
            "--json",
            &self.lenders[lender].address,
        ]));
        let answers: Value = serde_json::from_str(&ran.out).unwrap();
        answers[0]["report"].clone()
    }

    /// Faults of the last run on pages that were away, or here and compressed.
    fn returned(&self) -> u64 {
        self.told("fetched") + self.told("unpacked")
    }

    /// Returns a number of the last run's report.
    fn told(&self, what: &str) -> u64 {
        let text = std::fs::read_to_string(self.report()).unwrap();
        let report: Value = serde_json::from_str(&text).unwrap();
        report[what].as_u64().unwrap_or_else(|| panic!("{text}"))
    }
}

/// Says aloud that a test cannot be run here.
fn skipped(missing: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Written past the test harness, which would swallow it.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

/// Runs a command to its end, however it ends.
fn output(command: &mut Command) -> Output {
    let child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_with_a_quarter_of_its_memory_reads_what_it_wrote() {
    let Some(site) = RunTestbed::new("quarter", 2, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let native = finish(Command::new(&heap).arg("works"));
    assert_eq!(native.code, 0, "{}", native.err);
    let far = finish(site.run("2MiB", &[], &heap).arg("works"));
    assert_eq!(far.code, 0, "{}", far.err);
    assert_eq!(far.out, native.out);
    let pages = 2 * 256;
    // Most pages are fetched ahead, and not counted there.
    assert!(site.told("fetched") > 50 && site.told("sent") > pages);
    assert!(site.told("used_bytes") <= 2 << 20);
}

#[test]
fn small_allocations_lie_there_too_if_that_is_asked_for() {
    let Some(site) = RunTestbed::new("small", 2, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let far = finish(site.run("2MiB", &["--threshold=1KiB"], &heap).arg("crumbles"));
    assert_eq!(far.code, 0, "{}", far.err);
    assert_eq!(far.out, "all is as it was written\n");
    assert!(site.returned() > 256, "of 8 MiB a quarter was here");
}

/// The program's part `works`, with a report on standard error.
fn reported(site: &RunTestbed, program: &Path) -> Command {
    let mut command = netram();
    command
        .args(["run", "--insecure", "--local=2MiB", "--report", "--lender"])
        .arg(site.addresses())
        .arg("--")
        .arg(program)
        .arg("works")
        .env("NETRAM_FARRUN", library());
    command
}

#[test]
fn the_report_is_also_a_line() {
    let Some(site) = RunTestbed::new("line", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let ran = finish(&mut reported(&site, &heap));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let told = |line: &str| line.starts_with("netram run: ") && line.contains(" fetched (");
    assert!(ran.err.lines().any(told), "{}", ran.err);
}
