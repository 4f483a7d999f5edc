//! The experiments of LND with the least effort: every file exists, every system has every x value, and
//! nothing is left behind. The values of the numbers are not tested.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use crate::common::run;
use serde_json::Value;

const SYSTEMS: [&str; 6] = [
    "disk",
    "disk-modelled",
    "volume-scp-tcp",
    "volume-lcp-tcp",
    "volume-scp-data",
    "volume-lcp-data",
];

/// Rows of a figure's file: system, x value, KB per second, p50.
fn rows(path: &Path) -> Vec<(String, u64, f64, f64)> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some(netram_bench::lnd::output::HEADER));
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        (
            fields[1].to_owned(),
            fields[2].parse().unwrap(),
            number(4),
            number(6),
        )
    };
    lines.map(row).collect()
}

#[test]
fn a_quick_run_measures_every_system_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (out, disk) = (directory.path().join("out"), directory.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let ran = run([
        "bench",
        "paper",
        "--only",
        "lnd",
        "--quick",
        "--cap",
        "50ms",
        "--figures",
        "3-5",
        "--json",
        "--out",
        out.to_str().unwrap(),
        "--dir",
        disk.to_str().unwrap(),
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    for reason in json["report"]["skipped"].as_array().unwrap() {
        // Written past the test harness, which would swallow it.
        writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
    }
    assert!(out.join("lnd-results.md").is_file());
    for figure in json["report"]["figures"].as_array().unwrap() {
        let number = figure["number"].as_u64().unwrap();
        let file = out.join(format!("lnd-fig{number:02}.csv"));
        let picture = std::fs::read_to_string(file.with_extension("svg")).unwrap();
        assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
        let rows = rows(&file);
        assert!(rows.iter().all(|row| row.2 > 0.0 && row.3 > 0.0), "{rows:?}");
        if number == 3 {
            continue;
        }
        let places: BTreeSet<u64> = rows.iter().map(|row| row.1).collect();
        assert_eq!(places.len(), 2);
        for system in SYSTEMS {
            assert_eq!(
                rows.iter().filter(|row| row.0 == system).count(),
                places.len(),
                "{system}"
            );
        }
        let in_program = rows.iter().filter(|row| row.0 == "volume-lcp-nbd").count();
        assert_eq!(in_program, if number == 4 { places.len() } else { 0 });
        // The sleep in each sync is a lower bound that holds on any machine.
        assert!(
            rows.iter()
                .all(|row| row.0 != "disk-modelled" || row.3 >= 1_000.0),
            "{rows:?}"
        );
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains(disk.to_str().unwrap()), "{mounts}");
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 0);
}
