//! `netram-lab bash` crashes recoverable memory without finding an error, finds injected faults, and leaves
//! nothing behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::common::{LenderProcess, netram, ran, run};
use rustix::process::{Pid, Signal};
use serde_json::Value;

fn left_behind(directory: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect()
}

/// Runs the command in `directory`; returns its JSON output and its exit code.
fn bash(directory: &Path, arguments: &[&str]) -> (Value, i32) {
    let command = netram()
        .args(["bash", "--json", "--dir"])
        .arg(directory)
        .args(arguments)
        .output();
    let ran = ran(command.expect("the program starts"));
    let said =
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}{}", ran.out, ran.err));
    (said, ran.code)
}

#[test]
fn five_seconds_of_crashes_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (said, code) = bash(directory.path(), &["--for", "5s"]);
    assert_eq!(code, 0, "{said}");
    let report = &said["report"];
    for what in ["acknowledged", "lazy", "aborted", "openings", "compared"] {
        assert!(
            report[what].as_u64().is_some_and(|count| count > 0),
            "{what}: {said}"
        );
    }
    let crashes = report["killed"].as_u64().unwrap() + report["crashed"].as_u64().unwrap();
    assert!(crashes > 0, "{said}");
    assert!(left_behind(directory.path()).is_empty());
}

#[test]
fn the_disk_alone_with_one_thread_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        ["--transactions", "1500", "--lenders", "0", "--threads", "3"],
        ["--transactions", "300", "--lenders", "1", "--threads", "1"],
    ] {
        let (said, code) = bash(directory.path(), &arguments);
        assert_eq!(code, 0, "{said}");
        assert!(
            said["report"]["compared"].as_u64().is_some_and(|count| count > 0),
            "{said}"
        );
    }
}

#[test]
fn given_lenders_are_used_and_not_killed() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    let key = key.to_str().unwrap();
    assert_eq!(run(["key", "create", key]).code, 0);
    let listen = [
        "--listen",
        "tcp://127.0.0.1:0",
        "--key-file",
        key,
        "--domain",
        "ups-1",
    ];
    let lender = LenderProcess::start("bashed", &listen);
    let place = tempfile::tempdir().unwrap();
    let arguments = ["--for", "2s", "--lender", &lender.address, "--key-file", key];
    let (said, code) = bash(place.path(), &arguments);
    assert_eq!(code, 0, "{said}");
    assert_eq!(said["report"]["lenders_killed"], 0);
    let status = run(["lender", "status", &lender.address, "--key-file", key, "--json"]);
    let status: Value = serde_json::from_str(&status.out).unwrap();
    let report = &status[0]["report"];
    assert!(
        report["counters"]["appends"].as_u64() > Some(0),
        "it had the journal: {status}"
    );
    // A closed journal leaves nothing at the lender.
    assert_eq!(report["journals_used"], 0, "{status}");
}

/// A test that finds no error must be shown to be able to find one.
#[test]
fn an_injected_fault_is_found_and_its_files_are_kept() {
    for (harm, named) in [("damage", "is not what its"), ("loss", "had been acknowledged")] {
        let directory = tempfile::tempdir().unwrap();
        let (said, code) = bash(
            directory.path(),
            &["--for", "20s", "--lenders", "0", "--seed", "5", "--plant", harm],
        );
        assert_eq!(code, 1, "{said}");
        let violation = said["violation"].as_str().unwrap();
        assert!(violation.contains(named), "{violation}");
        assert_eq!(said["seed"], 5);
        let kept = PathBuf::from(said["files"].as_str().unwrap());
        assert_eq!(left_behind(directory.path()), std::slice::from_ref(&kept));
        let story = std::fs::read_to_string(kept.join("story.txt")).unwrap();
        assert!(story.contains(violation), "{story}");
        for file in ["segment-0", "before/segment-0", "before/segment-2"] {
            assert!(kept.join(file).is_file(), "{file}");
        }
    }
}

#[test]
fn an_interrupted_run_reports_its_work_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let child = netram()
        .args(["bash", "--for", "1h", "--dir"])
        .arg(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let image = || {
        left_behind(directory.path())
            .iter()
            .any(|place| place.join("image").exists())
    };
    while !image() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains("transactions"), "{said}");
    assert!(left_behind(directory.path()).is_empty());
}
