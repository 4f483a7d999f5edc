//! The experiments of log-based coherency with the least effort: every file exists, and every curve has every
//! x value. The values of the numbers are not tested.

use std::io::Write;
use std::path::Path;

use crate::common::run;
use serde_json::Value;

#[test]
fn a_quick_run_measures_the_table_and_every_curve() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let ran = run([
        "bench",
        "paper",
        "--only",
        "osdi94",
        "--quick",
        // All but figure 3: its traversals update 1.5 million times for each way, and take 26 s.
        "--figures",
        "1,2,4-8",
        "--png",
        "--json",
        "--out",
        out.to_str().unwrap(),
        "--dir",
        disk.to_str().unwrap(),
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let skipped = json["report"]["skipped"].as_array().unwrap();
    for reason in skipped {
        // Written past the test harness, which would swallow it.
        writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
        assert!(
            reason.as_str().unwrap().contains("note"),
            "only the kernel's notes may be missing"
        );
    }
    let costs = std::fs::read_to_string(out.join("osdi94-table2.csv")).unwrap();
    for id in [
        "copy-cold",
        "compare-warm",
        "send-tcp",
        "send-unix",
        "fault-signal",
        "protect-trap",
    ] {
        assert!(
            costs.lines().any(|line| line.starts_with(&format!("{id},"))),
            "{id}: {costs}"
        );
    }
    for (number, curves) in [(4, 5), (5, 3), (6, 3), (7, 4)] {
        let missing = if skipped.is_empty() {
            0
        } else {
            1 + usize::from(number == 4)
        };
        let curves = curves - if number == 5 || number == 6 { 0 } else { missing };
        assert_figure(&out, number, curves);
    }
    assert_bars(&out, if skipped.is_empty() { 6 } else { 4 });
    let columns = std::fs::read_to_string(out.join("osdi94-fig08.csv")).unwrap();
    assert_eq!(columns.lines().count(), 1 + 5, "{columns}");
    let tables = std::fs::read_to_string(out.join("osdi94-results.md")).unwrap();
    assert!(tables.contains("Table 2") && tables.contains("Table 3") && tables.contains("Cpy/Cmp"));
    assert_eq!(
        std::fs::read_dir(&disk).unwrap().count(),
        0,
        "nothing is left behind"
    );
}

/// Checks the table of figures 1 to 3, with this number of ways to find changes.
fn assert_bars(out: &Path, ways: usize) {
    let bars = std::fs::read_to_string(out.join("osdi94-fig01-03.csv")).unwrap();
    assert_eq!(bars.lines().count(), 1 + 6 * ways, "{bars}");
    // Counts that follow from the benchmark are the same on every machine.
    let log = bars.lines().find(|line| line.starts_with("2,t2b,log,")).unwrap();
    assert!(log.contains(",43740,9900,79200,"), "{log}");
    // T12-C exchanges two values four times: pages that are compared show no change, and nothing is sent.
    let compared = bars
        .lines()
        .find(|line| line.starts_with("1,t12c,compare-trap,"))
        .unwrap();
    let columns: Vec<&str> = compared.split(',').collect();
    assert_eq!(
        columns[5..=10],
        ["0.00", "0.00", "0", "0", "0", "0"],
        "{compared}"
    );
}

/// Checks the files of a figure with this number of curves, each with two x values.
fn assert_figure(out: &Path, number: u8, curves: usize) {
    let file = out.join(format!("osdi94-fig{number:02}.csv"));
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .skip(1)
        .map(|line| line.split(',').collect())
        .collect();
    assert_eq!(rows.len(), curves * 2, "{text}");
    assert!(
        rows.iter().all(|row| row[4].parse::<f64>().unwrap() >= 0.0),
        "{text}"
    );
    for kind in ["svg", "png"] {
        assert!(
            file.with_extension(kind).metadata().unwrap().len() > 1000,
            "{kind}"
        );
    }
}
