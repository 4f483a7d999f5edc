//! `netram-lab bench far` runs every cell that is possible here, reports the others, and leaves no swap,
//! control group or file behind. The values of the numbers are not tested.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{finish, netram, start};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);
/// Directories in which control groups may be.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// Swap, groups and files that a comparison has added to the machine.
fn added(pid: u32, place: &Path) -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let swaps = swaps
        .lines()
        .filter(|line| line.contains(&*place.to_string_lossy()))
        .map(str::to_owned);
    let name = format!("netram-bench-{pid}-");
    let mut added: Vec<String> = swaps.collect();
    for above in GROUPS {
        groups(Path::new(above), 3, &name, &mut added);
    }
    added
}

/// Directories below this one whose names begin with `name`.
fn groups(directory: &Path, depth: usize, name: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        if entry.file_name().to_string_lossy().starts_with(name) {
            found.push(entry.path().display().to_string());
        } else if depth > 0 {
            groups(&entry.path(), depth - 1, name, found);
        }
    }
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().count() == 0
}

#[test]
fn each_method_is_run_or_its_obstacle_reported() {
    let (place, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut command = netram();
    command.args([
        "bench", "far", "--quick", "--json", "--data", "2MiB", "--local", "50",
    ]);
    command.args(["--programs", "scan,lookups"]);
    command
        .arg("--dir")
        .arg(place.path())
        .arg("--out")
        .arg(out.path());
    let ran = finish(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let skipped: Vec<&str> = report["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|why| why.as_str().unwrap().split(':').next().unwrap())
        .collect();
    for why in report["skipped"].as_array().unwrap() {
        crate::common::skipped(format_args!("{why}"));
    }
    let cells = report["cells"].as_array().unwrap();
    for program in ["scan", "lookups"] {
        for way in [
            "local",
            "swap",
            "slow-swap",
            "zram",
            "file",
            "run",
            "vec",
            "words",
        ] {
            let mut of = cells
                .iter()
                .filter(|cell| cell["program"] == program && cell["way"] == way);
            let possible = !skipped.contains(&way) && (program, way) != ("scan", "words");
            assert_eq!(of.next().is_some(), possible, "{program} {way}: {report}");
        }
    }
    // With half of its memory remote a program waits for some of it.
    let waited = cells
        .iter()
        .filter(|cell| cell["program"] == "scan" && cell["way"] == "vec");
    for cell in waited {
        let round = &cell["rounds"][0]["done"];
        assert!(round["minor_faults"].as_u64().unwrap() > 0, "{cell}");
    }
    let files: BTreeSet<String> = fs::read_dir(out.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let expected = ["far-lookups.svg", "far-scan.svg", "far.csv", "far-results.md"].map(str::to_owned);
    assert_eq!(files, BTreeSet::from(expected));
    let rows = fs::read_to_string(out.path().join("far.csv")).unwrap();
    assert_eq!(rows.lines().count(), cells.len() + 1);
    assert!(is_empty(place.path()));
}

/// Runs programs whose memory is four times what may be local, with two copies of each page. Every value that
/// they find is compared with that of the same program with all its memory local.
fn a_quarter_is_local(data: &str) {
    let place = tempfile::tempdir().unwrap();
    let mut command = netram();
    command.args([
        "bench",
        "far",
        "--json",
        "--rounds",
        "1",
        "--copies",
        "2",
        "--patience",
        "15m",
    ]);
    command.args([
        "--programs",
        "scan,lookups",
        "--local",
        "25",
        "--ways",
        "run,vec",
        "--data",
        data,
    ]);
    let ran = finish(command.arg("--dir").arg(place.path()));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    for why in report["skipped"].as_array().unwrap() {
        crate::common::skipped(format_args!("{why}"));
    }
    assert_eq!(report["copies"], 2);
    for cell in report["cells"].as_array().unwrap() {
        let round = &cell["rounds"][0]["done"];
        assert!(round["seconds"].is_number(), "{cell}");
        if cell["way"] != "local" {
            assert!(round["minor_faults"].as_u64().unwrap() > 0, "{cell}");
        }
    }
    assert!(is_empty(place.path()));
}

#[test]
fn programs_find_their_values_with_a_quarter_local_and_two_copies() {
    a_quarter_is_local("32MiB");
}

#[test]
#[ignore = "minutes, and 14 GiB of memory: scripts/soak.sh 1 far"]
fn programs_find_their_values_among_four_gibibytes_with_one_local() {
    a_quarter_is_local("4GiB");
}

#[test]
fn an_interrupted_far_comparison_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut command = netram();
    command.args([
        "bench",
        "far",
        "--data",
        "8MiB",
        "--programs",
        "trans",
        "--local",
        "25",
        "--rounds",
        "100",
    ]);
    command
        .arg("--dir")
        .arg(place.path())
        .stderr(Stdio::null())
        .stdout(Stdio::null());
    let mut process = start(&mut command);
    let id = process.id();
    let begun = Instant::now();
    // As soon as there is something to remove. Where nothing may be added, at least a directory exists then.
    while added(id, place.path()).is_empty()
        && begun.elapsed() < Duration::from_secs(5)
        && process.try_wait().unwrap().is_none()
    {
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    while process.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < PATIENCE, "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(added(id, place.path()), Vec::<String>::new());
    assert!(
        is_empty(place.path()),
        "{:?}",
        fs::read_dir(place.path()).unwrap().next()
    );
}

#[test]
fn invalid_comparisons_are_refused_before_anything_runs() {
    for (words, told) in [
        (["--data", "1MiB"], "--data must be 2.0 MiB at least"),
        (["--local", "5,50"], "5 % of 4.0 MiB is less than 256.0 KiB"),
        (["--local", "100"], "100 is not in 1..=99"),
        (["--programs", "tetris"], "possible values: scan, mvec"),
        (["--copies", "3"], "3 is not in 1..=2"),
    ] {
        let ran = finish(netram().args(["bench", "far", "--quick"]).args(words));
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(told), "{words:?}: {}", ran.err);
    }
}
