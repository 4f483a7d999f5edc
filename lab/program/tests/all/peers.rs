//! `netram-lab peers` measures every installed program, counts its records, and leaves nothing behind. The
//! values of the numbers are not tested.

use std::fs;

use crate::common::{finish, netram, skipped};
use serde_json::Value;

/// Number of peers; each is measured, or skipped with a reason.
const PEERS: usize = 24;

/// Ids of running processes whose arguments name a path below `place`.
fn left_running(place: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let words = |entry: &fs::DirEntry| fs::read(entry.path().join("cmdline")).unwrap_or_default();
    processes
        .map(|entry| String::from_utf8_lossy(&words(&entry)).replace('\0', " "))
        .filter(|words| words.contains(place))
        .collect()
}

#[test]
fn every_installed_peer_is_measured_and_leaves_nothing() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    // PostgreSQL's user must be able to pass through the directory.
    let through = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(place.path(), through).unwrap();
    let out = tempfile::tempdir().unwrap();
    let mut command = netram();
    command.args(["peers", "--quick", "--json", "--rounds", "1"]);
    command
        .arg("--dir")
        .arg(place.path())
        .arg("--out")
        .arg(out.path());
    let ran = finish(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    let left = left_running(&place.path().to_string_lossy());
    assert!(left.is_empty(), "{left:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let reasons: Vec<&str> = { report["skipped"].as_array().unwrap().iter() }
        .map(|why| why.as_str().unwrap())
        .collect();
    for why in &reasons {
        skipped(format_args!("{why}"));
        assert!(ran.err.contains(&format!("SKIPPED: {why}")), "{}", ran.err);
    }
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len() + reasons.len(), PEERS, "{reasons:?}");
    let is_explained = |why: &&str| {
        ["(package ", "root", "BookKeeper", "DRBD"]
            .iter()
            .any(|word| why.contains(word))
    };
    assert!(reasons.iter().all(is_explained), "{reasons:?}");
    for row in rows {
        let latency = &row["latency"];
        assert!(latency["count"].as_u64().unwrap() > 0, "{row}");
        assert!(latency["p50_us"].as_f64().unwrap() > 0.0, "{row}");
        assert!(latency["p99_us"].as_f64() >= latency["p50_us"].as_f64(), "{row}");
    }
    for file in ["peers.csv", "peers.svg", "peers-results.md"] {
        assert!(fs::metadata(out.path().join(file)).unwrap().len() > 100, "{file}");
    }
}

#[test]
fn a_missing_program_is_skipped_with_the_name_of_its_package() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut command = netram();
    command.args([
        "peers",
        "--quick",
        "--json",
        "--only",
        "fdatasync,redis,etcd",
        "--rounds",
        "1",
    ]);
    command.arg("--dir").arg(place.path()).env("PATH", "/nowhere");
    let ran = finish(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for told in [
        "SKIPPED: Redis, WAIT 1: there is no `redis-server` (package redis-server)",
        "SKIPPED: etcd, one node: there is no `etcd` (package etcd-server)",
    ] {
        assert!(ran.err.contains(told), "{}", ran.err);
    }
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["rows"].as_array().unwrap().len(), 1);
}

#[test]
fn invalid_comparisons_of_peers_are_refused() {
    for (words, told) in [
        (&["--only", "oracle"][..], "possible values: exchange, fdatasync"),
        (&["--time", "1ms"], "--time must be from 50ms to 1m"),
        (&["--rounds", "0"], "0 is not in 1..=100"),
        (&["--png"], "--out"),
    ] {
        let ran = finish(netram().arg("peers").args(words));
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(told), "{words:?}: {}", ran.err);
    }
}
