//! `netram-lab bench databases` measures every installed database in every way, finds every acknowledged row,
//! and leaves nothing behind. The values of the numbers are not tested.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{finish, netram, start};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// Mount points below a directory.
fn mounts(below: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let below = below.to_string_lossy().into_owned();
    table
        .lines()
        .filter(|line| line.contains(&below))
        .map(str::to_owned)
        .collect()
}

fn compared(words: &[&str], out: Option<&Path>) -> Value {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    // PostgreSQL's user must be able to pass through the directory.
    let through = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    fs::set_permissions(place.path(), through).unwrap();
    let mut command = netram();
    command.args(["bench", "databases", "--quick", "--json", "--time", "100ms"]);
    command.args(words).arg("--dir").arg(place.path());
    if let Some(out) = out {
        command.arg("--out").arg(out);
    }
    let ran = finish(&mut command);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    assert_eq!(mounts(place.path()), Vec::<String>::new());
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    for why in report["skipped"].as_array().unwrap() {
        crate::common::skipped(format_args!("{why}"));
    }
    report
}

/// Whether a database, or a storage, was skipped.
fn is_skipped(report: &Value, name: &str) -> bool {
    let skipped = report["skipped"].as_array().unwrap();
    skipped.iter().any(|why| why.as_str().unwrap().starts_with(name))
}

fn has_all(report: &Value, database: (&str, &str), storages: &[&str], works: &[&str], disks: &[&str]) {
    if is_skipped(report, database.1) {
        return;
    }
    for storage in storages {
        for work in works {
            for disk in disks {
                let is = |cell: &&Value| {
                    cell["database"] == database.0
                        && cell["storage"] == *storage
                        && cell["work"] == *work
                        && cell["disk"] == *disk
                };
                let cell = report["cells"].as_array().unwrap().iter().find(is);
                assert_eq!(
                    cell.is_some(),
                    !is_skipped(report, storage),
                    "{database:?} {storage} {work} {disk}: {report}"
                );
                if let Some(cell) = cell {
                    assert!(cell["per_second"].as_f64().unwrap() > 0.0, "{cell}");
                }
            }
        }
    }
}

#[test]
fn embedded_engines_are_measured_on_every_storage() {
    let out = tempfile::tempdir().unwrap();
    let words = ["--databases", "sqlite,rocksdb,berkeley-db,lmdb"];
    let report = compared(&words, Some(out.path()));
    let disks = ["local", "modelled"];
    let storages = ["plain", "mount", "disk", "vfs", "off"];
    has_all(&report, ("sqlite", "SQLite"), &storages, &["insert"], &disks);
    for database in [
        ("rocksdb", "RocksDB"),
        ("berkeley-db", "Berkeley DB"),
        ("lmdb", "LMDB"),
    ] {
        let storages = ["plain", "mount", "disk", "off"];
        has_all(&report, database, &storages, &["insert"], &disks);
    }
    // A millisecond more in each commit shows on any machine.
    let plain = |disk: &str| {
        let cells = report["cells"].as_array().unwrap().iter();
        let mut of = cells.filter(|cell| {
            cell["database"] == "sqlite" && cell["storage"] == "plain" && cell["disk"] == disk
        });
        of.next().unwrap()["per_second"].as_f64().unwrap()
    };
    assert!(plain("modelled") <= 1000.0, "{}", plain("modelled"));
    for file in ["databases.csv", "databases.svg", "databases-results.md"] {
        assert!(fs::metadata(out.path().join(file)).unwrap().len() > 100, "{file}");
    }
}

#[test]
fn servers_are_measured_on_every_storage() {
    let words = ["--databases", "postgresql,mariadb", "--disks", "local"];
    let report = compared(&words, None);
    has_all(
        &report,
        ("postgresql", "PostgreSQL"),
        &["plain", "mount", "disk", "remote_write", "off"],
        &["insert", "TPC-B", "TPC-B, 8 clients"],
        &["local"],
    );
    has_all(
        &report,
        ("mariadb", "MariaDB"),
        &["plain", "mount", "disk", "off"],
        &["insert", "create table", "drop table"],
        &["local"],
    );
}

/// Power is cut while a service writes: the strictest sync loses nothing, on a mount or on the disk, and the
/// setting that people use loses something. That one shows that the cut takes what was not synced.
#[test]
fn services_keep_on_a_mount_what_they_acknowledged() {
    let words = [
        "--databases",
        "redis,etcd,kine,jetstream",
        "--storages",
        "plain,mount,off",
        "--disks",
        "local",
        "--cuts",
        "2",
    ];
    let report = compared(&words, None);
    let mut lost_unsynced = None;
    for (id, label) in [
        ("redis", "Redis"),
        ("etcd", "etcd"),
        ("kine", "kine"),
        ("jetstream", "JetStream"),
    ] {
        let works = ["insert", "insert, 4 clients"];
        has_all(
            &report,
            (id, label),
            &["plain", "mount", "off"],
            &works,
            &["local"],
        );
        for storage in ["plain", "mount", "off"] {
            if is_skipped(&report, label) || is_skipped(&report, storage) {
                continue;
            }
            let is = |cuts: &&Value| cuts["database"] == id && cuts["storage"] == storage;
            let cuts = report["cuts"].as_array().unwrap().iter().find(is).unwrap();
            assert!(cuts["acknowledged"].as_u64().unwrap() > 0, "{cuts}");
            let lost = cuts["lost"].as_u64().unwrap();
            match storage {
                // Redis may have synced in the very moment before.
                "off" => *lost_unsynced.get_or_insert(0) += lost,
                _ => assert_eq!(lost, 0, "{cuts}"),
            }
        }
    }
    assert_ne!(lost_unsynced, Some(0), "{}", report["cuts"]);
    for cell in report["cells"].as_array().unwrap() {
        let latency = cell["latency_us"].as_array().unwrap();
        assert!(latency[0].as_f64().unwrap() > 0.0, "{cell}");
        assert!(latency[1].as_f64() >= latency[0].as_f64(), "{cell}");
    }
}

/// Names in the one directory that a measurement creates.
fn made(place: &Path) -> Vec<String> {
    let directories = fs::read_dir(place).unwrap().flatten();
    let entries =
        directories.flat_map(|directory| fs::read_dir(directory.path()).into_iter().flatten().flatten());
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Interrupts a comparison once `so_far` holds, or after some seconds. Where nothing may be mounted, at least
/// a directory exists then.
fn interrupted(place: &Path, so_far: impl Fn() -> bool) {
    let mut command = netram();
    command.args(["bench", "databases", "--databases", "sqlite", "--rounds", "100"]);
    command
        .arg("--dir")
        .arg(place)
        .stderr(Stdio::null())
        .stdout(Stdio::null());
    let mut process = start(&mut command);
    let begun = Instant::now();
    while !so_far() && begun.elapsed() < Duration::from_secs(5) && process.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    kill_process(Pid::from_child(&process), Signal::INT).unwrap();
    let status = loop {
        match process.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(begun.elapsed() < PATIENCE, "it goes on"),
        }
        // An impatient user interrupts twice, and loses nothing by it.
        kill_process(Pid::from_child(&process), Signal::INT).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(130));
    assert_eq!(mounts(place), Vec::<String>::new());
    let left = fs::read_dir(place).unwrap().next();
    assert!(left.is_none(), "{left:?}: {:?}", made(place));
}

#[test]
fn an_interrupted_database_comparison_leaves_nothing() {
    let place = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = place.path();
    let is_mounted = || !mounts(place).is_empty();
    let is_made = |what: &str| made(place).iter().any(|name| name.starts_with(what));
    interrupted(place, is_mounted);
    // While a device is being created, beside a mount that has not been released.
    interrupted(place, || is_made("attached"));
    // Before the mount's process has mounted anything.
    interrupted(place, || is_made("mounted-"));
}

#[test]
fn invalid_comparisons_are_refused_before_anything_runs() {
    for (words, told) in [
        (
            &["--databases", "oracle"][..],
            "possible values: postgresql, mariadb",
        ),
        (
            &["--storages", "tape"],
            "possible values: plain, mount, disk, vfs",
        ),
        (&["--disks", "floppy"], "possible values: local, modelled"),
        (&["--time", "1ms"], "--time must be from 50ms to 10m"),
        (&["--rounds", "0"], "0 is not in 1..=100"),
        (&["--cuts", "10001"], "10001 is not in 0..=10000"),
        (
            &["--databases", "lmdb", "--storages", "vfs"],
            "LMDB supports none of --storages",
        ),
        (&["--lender-wait", "never"], "never"),
    ] {
        let ran = finish(netram().args(["bench", "databases"]).args(words));
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.err);
        assert!(ran.err.contains(told), "{words:?}: {}", ran.err);
    }
}
