//! The demo and the benchmarks run to their end, check their results, and leave nothing behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::run;
use rustix::process::{Pid, Signal};
use serde_json::Value;

fn left_behind(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn the_demo_proves_that_nothing_acknowledged_is_lost_and_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let ran = run(["demo", "--quick", "--dir", directory.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}\n{}", ran.out, ran.err);
    assert!(ran.out.contains("Nothing acknowledged was lost"), "{}", ran.out);
    assert!(
        ran.out.contains("gave all it held"),
        "recovery says who helped: {}",
        ran.out
    );
    assert_eq!(left_behind(directory.path()), 0);
}

#[test]
fn a_commit_is_measured_beside_its_floors() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let ran = run([
        "bench",
        "commit",
        "--quick",
        "--json",
        "--members",
        "2",
        "--dir",
        dir,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let row = &json["rows"][0];
    for path in [
        "/commit/p50_us",
        "/exchange/p50_us",
        "/fan_out/p50_us",
        "/sync/p50_us",
        "/ratio",
    ] {
        assert!(
            row.pointer(path)
                .and_then(Value::as_f64)
                .is_some_and(|value| value > 0.0),
            "{path}: {row}"
        );
    }
    assert!(json["machine"]["cores"].as_u64().is_some_and(|cores| cores > 0));
    assert_eq!(left_behind(directory.path()), 0);
}

#[test]
fn tpca_runs_the_same_code_on_disk_and_remote() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let ran = run([
        "bench",
        "tpca",
        "--quick",
        "--json",
        "--accounts",
        "1",
        "--pattern",
        "random",
        "--dir",
        dir,
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let durabilities: Vec<&str> = json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["durability"].as_str().unwrap())
        .collect();
    assert_eq!(durabilities, ["disk", "remote"]);
}

#[test]
fn oo7_counts_the_same_on_disk_and_remote() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    for transactions in [&[][..], &["--one-transaction"]] {
        let operations = ["--operations", "t2b,t3a,t5do,t5undo,i,d,q8"];
        let ran = run([
            "bench",
            "oo7",
            "--quick",
            "--json",
            "--dir",
            dir,
            "--database",
            "tiny-3",
        ]
        .into_iter()
        .chain(operations)
        .chain(transactions.iter().copied()));
        assert_eq!(ran.code, 0, "{}", ran.err);
        let json: Value = serde_json::from_str(&ran.out).unwrap();
        let reports = json["rows"].as_array().unwrap();
        let durabilities: Vec<&Value> = reports.iter().map(|report| &report["durability"]).collect();
        assert_eq!(durabilities, ["disk", "remote"]);
        for report in reports {
            let counts = report["rows"].as_array().unwrap().iter();
            let counts: Vec<u64> = counts.map(|row| row["count"].as_u64().unwrap()).collect();
            assert_eq!(counts, [43_740, 2_187, 50, 50, 10, 10, 1_000]);
            // t2b: eight bytes of every part, and nothing else.
            let logged = &report["rows"][0]["logged"];
            assert_eq!(
                (&logged["ranges"], &logged["bytes"]),
                (&1_000.into(), &8_000.into())
            );
            assert_eq!(report["rows"][6]["logged"]["records"], 0, "a query logs nothing");
        }
    }
    assert_eq!(left_behind(directory.path()), 0);
}

/// Each row ends with every node's audit, which must equal that of plain memory.
#[test]
fn users_of_oo7_at_separate_nodes_are_measured() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let words = "bench oo7 --shared --nodes 2 --as-met --quick --json --database tiny-3 --dir";
    let ran = run(words.split(' ').chain([dir]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let users: Vec<u64> = rows.iter().map(|row| row["nodes"].as_u64().unwrap()).collect();
    assert_eq!(users, [1, 2, 1, 2, 1, 2]);
    for row in rows {
        assert!(row["transactions_s"].as_f64().unwrap() > 0.0, "{row}");
        let waited = row["waited_percent"].as_f64().unwrap();
        assert!((0.0..=100.0).contains(&waited), "{row}");
    }
    assert_eq!(left_behind(directory.path()), 0);
}

/// t3a moves dates between rounds, so q2 finds other parts; all places of a round must find the same ones.
#[test]
fn oo7_counts_the_same_in_databases_on_any_storage() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let dir = directory.path().to_str().unwrap();
    let words = "bench oo7 --on sqlite,sqlite-rollback,berkeley-db --operations q2,t3a,t6 --repetitions 3 --json --database tiny-3 --dir";
    let ran = run(words.split(' ').chain([dir]));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let skipped = json["rows"]["skipped"].as_array().unwrap();
    for why in skipped {
        crate::common::skipped(why.as_str().unwrap());
    }
    let stores = json["rows"]["stores"].as_array().unwrap();
    let berkeley = usize::from(!skipped.iter().any(|why| why.to_string().contains("Berkeley")));
    assert_eq!(stores.len(), 2 + berkeley);
    let rows = |store: &Value| store["rows"].as_array().unwrap().clone();
    for store in stores {
        let told: Vec<(String, bool)> = rows(store)
            .iter()
            .map(|row| {
                (
                    row["operation"].as_str().unwrap().to_owned(),
                    row["logged"].as_bool().unwrap(),
                )
            })
            .collect();
        let expected = [("q2", false), ("t3a", false), ("t6", false), ("t6", true)];
        assert_eq!(told, expected.map(|(name, logged)| (name.to_owned(), logged)));
        let counts = |of: &Value| {
            rows(of)
                .iter()
                .map(|row| row["count"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(counts(store)[1..], [2_187, 2_187, 2_187]);
        assert_eq!(counts(store), counts(&stores[0]), "all stores count the same");
        let places = store["places"].as_array().unwrap().len();
        assert!(places >= 1);
        for row in rows(store) {
            let times = row["times_us"].as_array().unwrap();
            assert_eq!(times.len(), places);
            assert!(times.iter().all(|time| time.as_f64().unwrap() > 0.0), "{row}");
        }
    }
    assert_eq!(left_behind(directory.path()), 0);
}

#[test]
fn the_heap_is_measured_beside_malloc_and_holds_together_under_load() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let ran = run(["bench", "heap", "--quick", "--json", "--dir", dir]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let number = |path: &str| json.pointer(path).and_then(Value::as_f64).unwrap();
    for size in 0..7 {
        for measured in ["alloc_ns", "malloc_ns", "free_ns", "c_free_ns", "alloc_log_bytes"] {
            assert!(number(&format!("/rows/speed/{size}/{measured}")) > 0.0);
        }
        // A range of at least one byte, and its header of four.
        assert!(number(&format!("/rows/speed/{size}/single_log_bytes")) >= 5.0);
    }
    assert!(number("/rows/opening/ms") > 0.0);
    // Small, mixed, large: the measurement itself has checked that every block is there.
    for load in 0..3 {
        let [refused, steps] =
            ["refused", "steps"].map(|count| number(&format!("/rows/load/{load}/{count}")));
        assert!(refused * 1000.0 < steps, "{refused} of {steps}");
        let pages = number(&format!("/rows/load/{load}/pages_per_byte"));
        assert!((1.0..1.4).contains(&pages), "{pages}");
    }
    assert_eq!(left_behind(directory.path()), 0);
}

/// A signal also interrupts the wait for a lender that starts. That failure must not end the program first.
#[test]
fn an_interrupted_measurement_leaves_nothing_behind() {
    interrupt(crate::common::netram());
    // The thread that hears of signals hears of this one late.
    let held = || {
        let mut held = Command::new("strace");
        held.args([
            "-D",
            "-f",
            "-q",
            "-o",
            "/dev/null",
            "-e",
            "inject=recvfrom:delay_exit=300ms",
        ]);
        held
    };
    if !held().arg("true").status().is_ok_and(|status| status.success()) {
        return crate::common::skipped("strace cannot hold a thread here: apt-get install strace");
    }
    let mut held = held();
    held.arg(crate::common::netram().get_program());
    interrupt(held);
}

/// Interrupts a measurement by this command as soon as it has started a lender.
fn interrupt(mut command: Command) {
    let directory = tempfile::tempdir().unwrap();
    let mut child = command
        .args(["bench", "commit", "--dir", directory.path().to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let store = format!("netram-bench-{}-", child.id());
    let stores = || {
        let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&store))
            .count()
    };
    while stores() == 0 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it had a lender"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!((left_behind(directory.path()), stores()), (0, 0));
}

#[test]
fn a_benchmark_without_a_directory_says_which() {
    let ran = run(["bench", "commit", "--quick", "--dir", "/nowhere"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .starts_with("netram: cannot make a directory in /nowhere: "),
        "{}",
        ran.err
    );
}
