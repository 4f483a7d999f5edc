//! The experiments of TR-190 with the least effort: every file exists, can be read and has every curve, and
//! nothing is left behind. The values of the numbers are not tested.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Stdio;

use crate::common::run;
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Curves of every figure; those between namespaces only if namespaces can be created.
const LINKS: [&str; 4] = ["rvm", "rrvm-unix", "rrvm-tcp", "rrvm-netns"];
const MODELLED: &str = "-modelled";
const TRANSACTIONS_MAX: u64 = 10_000;

/// Namespaces of the process with this id.
fn namespaces(pid: u32) -> Vec<String> {
    let own = format!("netram-{pid}-");
    let Ok(entries) = std::fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&own)).collect()
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).unwrap().count() == 0
}

/// The rows of a CSV file by curve and x value.
fn rows(path: &Path) -> BTreeMap<(String, u64), BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let rows = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), header.len(), "{}: {line}", path.display());
        let row: BTreeMap<String, String> = header
            .iter()
            .map(ToString::to_string)
            .zip(fields.iter().map(ToString::to_string))
            .collect();
        ((row["system"].clone(), row["x"].parse().unwrap()), row)
    });
    rows.collect()
}

fn check_csv(path: &Path, number: u8, namespaces: bool) {
    let rows = rows(path);
    let systems: BTreeSet<&str> = rows.keys().map(|(system, _)| system.as_str()).collect();
    let places: BTreeSet<u64> = rows.keys().map(|(_, place)| *place).collect();
    let mut expected: BTreeSet<String> = LINKS
        .iter()
        .filter(|link| namespaces || **link != "rrvm-netns")
        .flat_map(|link| [(*link).to_owned(), format!("{link}{MODELLED}")])
        .collect();
    if matches!(number, 1 | 4) {
        expected.extend(["floor-fdatasync", "floor-exchange"].map(str::to_owned));
    }
    assert_eq!(
        systems,
        expected.iter().map(String::as_str).collect(),
        "figure {number}"
    );
    assert!(places.len() >= 2, "figure {number} is a curve");
    assert_eq!(
        rows.len(),
        systems.len() * places.len(),
        "every curve has every place"
    );
    for ((system, place), row) in &rows {
        let field = |name: &str| -> f64 {
            let parsed = row[name].parse();
            parsed.unwrap_or_else(|_| panic!("{name} of {system} at {place}: {row:?}"))
        };
        assert_eq!(row["figure"], number.to_string());
        assert!(field("tps") > 0.0, "{row:?}");
        let (p50, p99, max) = (field("p50_us"), field("p99_us"), field("max_us"));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= max, "{row:?}");
        let transactions: u64 = row["transactions"].parse().unwrap();
        let clients = if (5..=8).contains(&number) { *place } else { 1 };
        assert!(transactions > 0, "{row:?}");
        if !system.starts_with("floor") {
            assert!(transactions <= clients * TRANSACTIONS_MAX, "{row:?}");
        }
        if system == &format!("rvm{MODELLED}") {
            // The sleep in each sync is a lower bound that holds on any machine.
            assert!(max >= 8_000.0, "a modelled disk takes its 8 ms: {row:?}");
        }
    }
}

fn check_picture(svg: &Path) {
    let text = std::fs::read_to_string(svg).unwrap();
    assert!(
        text.starts_with("<svg") && text.trim_end().ends_with("</svg>"),
        "{}",
        svg.display()
    );
    for label in ["RVM", "RRVM, Unix socket", "RRVM, TCP, MODELLED disk"] {
        assert!(text.contains(label), "{label} in {}", svg.display());
    }
    check_pngs(svg);
}

/// Checks the PNGs on white and on black beside an SVG.
fn check_pngs(svg: &Path) {
    let stem = svg.file_stem().unwrap().to_str().unwrap();
    let [light, dark] = ["", "-dark"].map(|theme| {
        let png = std::fs::read(svg.with_file_name(format!("{stem}{theme}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG\r\n\x1a\n") && png.len() > 1000);
        png
    });
    assert_ne!(light, dark, "{stem}");
}

/// Checks figure 12, which has operations in place of an axis.
fn check_oo7(csv: &Path) {
    let text = std::fs::read_to_string(csv).unwrap();
    for operation in ["t5do,false", "t6,false", "t6,true", "t12a,false"] {
        let row = format!("12,sqlite,{operation},unmodified-local,");
        assert!(text.contains(&row), "{row} in {text}");
    }
    let svg = csv.with_extension("svg");
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("figure 12"));
    check_pngs(&svg);
}

#[test]
fn a_quick_run_draws_and_tabulates_every_figure_and_leaves_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    let (out, disk) = (directory.path().join("out"), directory.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let child = crate::common::netram()
        .args([
            "bench", "paper", "--only", "tr190", "--quick", "--small", "--cap", "15ms", "--png", "--json",
            "--out",
        ])
        .arg(&out)
        .arg("--dir")
        .arg(&disk)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let ran = crate::common::ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let report = &json["report"];
    let skipped = report["skipped"].as_array().unwrap();
    for reason in skipped {
        // Written past the test harness, which would swallow it.
        use std::io::Write;
        writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
    }
    for number in 1..=11 {
        let file = out.join(format!("fig{number:02}.csv"));
        check_csv(&file, number, skipped.is_empty());
        check_picture(&file.with_extension("svg"));
    }
    assert_eq!(report["figures"].as_array().unwrap().len(), 11);
    check_oo7(&out.join("fig12.csv"));
    assert_eq!(json["files"].as_array().unwrap().len(), 12 * 4 + 2);
    let claims = report["claims"].as_array().unwrap();
    for id in [
        "small-rrvm-tcp",
        "small-rrvm-tcp-modelled",
        "tpca-random",
        "tpca-localised-flat",
        "no-flush-sequential",
        "no-flush-sequential-spool",
        "original-random-2048",
    ] {
        let claim = claims.iter().find(|claim| claim["id"] == id);
        let value = claim.unwrap_or_else(|| panic!("{id}"))["value"].as_f64();
        assert!(value.is_some_and(|value| value > 0.0), "{id}");
    }
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 12);
    assert!(
        page.contains("A quick run")
            && page.contains("With small data files")
            && page.contains("bench paper --only tr190")
    );
    assert!(!page.contains("<script") && !page.contains("NaN"));
    assert!(is_empty(&disk), "data files are removed");
    assert_eq!(namespaces(pid), [""; 0]);
}

#[test]
fn without_namespaces_the_rest_is_measured_and_the_gap_reported() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let ran = crate::common::netram()
        .args([
            "bench",
            "paper",
            "--quick",
            "--small",
            "--figures",
            "9",
            "--cap",
            "20ms",
            "--out",
        ])
        .arg(&out)
        .arg("--dir")
        .arg(directory.path())
        // Without the `ip` command, as on a machine that lacks it.
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let ran = crate::common::ran(ran);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let reason = "SKIPPED: TCP between network namespaces is not measured";
    assert!(
        ran.err.contains(reason) && ran.out.contains(reason),
        "{}\n{}",
        ran.out,
        ran.err
    );
    check_csv(&out.join("fig09.csv"), 9, false);
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert!(page.contains("Not measured: TCP between network namespaces"));
}

#[test]
fn an_interrupted_run_removes_its_namespaces_files_and_lenders_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (out, disk) = (directory.path().join("out"), directory.path().join("disk"));
    std::fs::create_dir(&disk).unwrap();
    let mut child = crate::common::netram()
        .args(["bench", "paper", "--figures", "7", "--out"])
        .arg(&out)
        .arg("--dir")
        .arg(&disk)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id();
    let stores = || {
        let own = format!("netram-bench-{pid}-");
        let entries = std::fs::read_dir("/dev/shm").unwrap().flatten();
        entries
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&own))
            .count()
    };
    while stores() == 0 {
        assert!(
            child.try_wait().unwrap().is_none(),
            "it ended before it had a lender"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(is_empty(&disk), "the data files are removed");
    assert_eq!((namespaces(pid), stores()), (Vec::new(), 0));
    assert!(!out.join("index.html").exists(), "half a run is no result");
}

#[test]
fn invalid_requests_are_refused_before_anything_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let out = directory.path().join("out");
    let out = out.to_str().unwrap();
    let ran = run(["bench", "paper", "--figures", "13", "--dir", dir, "--out", out]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("figure 13 of TR-190 is not measured"),
        "{}",
        ran.err
    );
    let ran = run(["bench", "paper", "--figures", "3-1", "--dir", dir, "--out", out]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let ran = run([
        "bench",
        "paper",
        "--quick",
        "--dir",
        dir,
        "--out",
        "/proc/nowhere",
    ]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("/proc/nowhere"), "{}", ran.err);
}
