//! The scoreboard's rows about shared memory are all there, and nothing is left behind. The values of the
//! numbers are not tested.

use crate::common::run;
use serde_json::Value;
use std::io::Write;

const ROWS: [(&str, bool); 11] = [
    ("shared-visible", true),
    ("shared-visible-cores", true),
    ("shared-visible-rested", true),
    ("shared-visible-rested-cores", true),
    ("shared-reacquire", false),
    ("shared-commit", true),
    ("shared-fanout", false),
    ("shared-t12a", false),
    ("shared-t2b", false),
    ("shared-failover-killed", true),
    ("shared-failover-silent", true),
];

#[test]
fn every_row_is_measured_and_nothing_is_left() {
    let disk = tempfile::tempdir().unwrap();
    let directory = disk.path().to_str().unwrap();
    let ran = run([
        "bench", "figures", "--only", "shared", "--quick", "--json", "--dir", directory,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let rows = json["figures"].as_array().unwrap();
    let skipped = json["skipped"].as_array().unwrap();
    let no_multicast = skipped
        .iter()
        .any(|reason| reason.as_str().unwrap().contains("by multicast"));
    for (id, floor) in ROWS {
        let row = rows.iter().find(|row| row["id"] == id);
        if row.is_none() && id == "shared-fanout" && no_multicast {
            let _ = writeln!(std::io::stderr(), "\nSKIPPED {id}: {skipped:?}");
            continue;
        }
        let row = row.unwrap_or_else(|| panic!("{id} is measured"));
        assert!(row["value"].is_f64(), "{row}");
        assert_eq!(
            row["floor"].as_f64().is_some_and(|floor| floor > 0.0),
            floor,
            "{row}"
        );
    }
    assert_eq!(std::fs::read_dir(disk.path()).unwrap().count(), 0);
}
