//! The scoreboard's rows about volumes are all there, beside their floors, and nothing is left behind. The
//! values of the numbers are not tested.

use std::io::Write;

use crate::common::run;
use serde_json::Value;

const ALWAYS: [&str; 10] = [
    "volume-write-4k",
    "volume-write-512-1ms",
    "volume-write-2k-1ms",
    "volume-read-4k",
    "volume-read-64k",
    "volume-throughput",
    "volume-stall-stopped",
    "volume-stall-killed",
    "volume-memory-stages",
    "volume-memory-process",
];
const WHERE_POSSIBLE: [&str; 7] = [
    "volume-throughput-link",
    "volume-throughput-link-2500",
    "volume-throughput-link-10000",
    "volume-lenders-3",
    "volume-lenders-4",
    "volume-cast-all-2",
    "volume-cast-any-4",
];

#[test]
fn every_row_is_measured_beside_its_floor_and_nothing_is_left() {
    let disk = tempfile::tempdir().unwrap();
    let directory = disk.path().to_str().unwrap();
    let ran = run([
        "bench", "figures", "--only", "volumes", "--quick", "--json", "--dir", directory,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    for reason in json["skipped"].as_array().unwrap() {
        // Written past the test harness, which would swallow it.
        writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
    }
    let rows = json["figures"].as_array().unwrap();
    let of = |id: &str| rows.iter().find(|row| row["id"] == id);
    let skipped = !json["skipped"].as_array().unwrap().is_empty();
    for id in WHERE_POSSIBLE {
        assert!(of(id).is_some() || skipped, "{id} is measured or skipped aloud");
    }
    for id in ALWAYS {
        let row = of(id).unwrap_or_else(|| panic!("{id} is measured"));
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        assert!(
            number("value") >= 0.0 && number("floor") > 0.0 && number("ratio") >= 0.0,
            "{row}"
        );
    }
    // The sleep in each sync is a lower bound that holds on any machine.
    let slow = of("volume-write-512-1ms").unwrap()["floor"].as_f64().unwrap();
    assert!(slow >= 1_000.0, "{slow}");
    // The volume's own count of its memory does not depend on timing.
    assert_eq!(of("volume-memory-stages").unwrap()["met"], true);
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}
