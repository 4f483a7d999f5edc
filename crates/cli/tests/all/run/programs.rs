//! Programs of others, at three quarters, half and a quarter of the memory that they take: what they find is
//! what they find without.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{RunTestbed, output, skipped, start, text};

/// How much of what a program takes may be here, in percent.
const LOCALS: [u64; 3] = [75, 50, 25];

/// Returns a percentage of a program's memory, as an argument of `netram run`.
fn share(memory_mib: u64, percent: u64) -> String {
    format!("{}KiB", (memory_mib << 10) * percent / 100)
}

/// Returns the path of a program that is not a script. `None`: there is none, and the test printed that it is
/// skipped.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let is_binary = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let found = std::env::split_paths(&directories)
        .map(|directory| directory.join(program))
        .find(is_binary);
    if found.is_none() {
        skipped(&format!("there is no `{program}`"));
    }
    found
}

#[test]
fn sort_sorts_as_ever() {
    let Some(sort) = find("sort") else { return };
    let Some(site) = RunTestbed::new("sort", 2, "128MiB") else {
        return;
    };
    let input = site.directory.path().join("input");
    let mut state = 1_u64;
    let mut lines = String::new();
    for _ in 0..150_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        lines.push_str(&format!("{:016x} {}\n", state, state >> 40));
    }
    std::fs::write(&input, lines).unwrap();
    let words = ["-S", "48M", "--parallel=2"];
    let native = output(Command::new(&sort).args(words).arg(&input).env("LC_ALL", "C"));
    for percent in LOCALS {
        let far = output(
            site.run(&share(16, percent), &[], &sort)
                .args(words)
                .arg(&input)
                .env("LC_ALL", "C"),
        );
        assert!(far.status.success(), "{percent} %: {}", text(&far.stderr));
        assert!(far.stdout == native.stdout, "{percent} %: another order");
    }
    // It ends by `_exit`, so there is no report. What compresses is packed here, and the rest is at lenders.
    let gets = site.status(0)["counters"]["deposit_gets"].as_u64().unwrap();
    assert!(gets > 100, "{gets}");
}

/// A program may call `select`, whose sets end at 1,024: it gets the limit of open files that its user chose.
#[test]
fn a_program_gets_the_limit_of_open_files_that_its_user_has() {
    let (Some(shell), Some(prlimit)) = (find("bash"), find("prlimit")) else {
        return;
    };
    let Some(site) = RunTestbed::new("limit", 2, "16MiB") else {
        return;
    };
    let inner = site.run("1MiB", &[], &shell);
    let mut command = Command::new(prlimit);
    command
        .arg("--nofile=256:")
        .arg(inner.get_program())
        .args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = output(command.args(["-c", "ulimit -Sn"]));
    assert_eq!(text(&ran.stdout).trim(), "256", "{}", text(&ran.stderr));
}

#[test]
fn a_database_in_memory_answers_as_ever() {
    let Some(sqlite) = find("sqlite3") else { return };
    let Some(site) = RunTestbed::new("sqlite", 2, "128MiB") else {
        return;
    };
    let script = "
        CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, body BLOB);
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)
            INSERT INTO t SELECT i, printf('%08x', i * 2654435761 % 4294967296), printf('%200d', i) FROM n;
        CREATE INDEX by_name ON t (name);
        UPDATE t SET body = body || name WHERE id % 3 = 0;
        DELETE FROM t WHERE id % 7 = 0;
        SELECT count(*), sum(length(body)), min(name), max(name) FROM t;
        SELECT id, name FROM t ORDER BY name LIMIT 5;
        PRAGMA integrity_check;
    ";
    let ask = |mut command: Command| {
        let mut child = start(
            command
                .arg(":memory:")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let ran = child.wait_with_output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        text(&ran.stdout)
    };
    let native = ask(Command::new(&sqlite));
    assert!(native.contains("ok"), "{native}");
    for percent in LOCALS {
        // Its pages are allocated one by one.
        let far = ask(site.run(&share(12, percent), &["--threshold", "1KiB"], &sqlite));
        assert_eq!(far, native, "{percent} %");
    }
    assert!(site.returned() > 768);
}

#[test]
fn arrays_of_numbers_keep_their_values() {
    let Some(python) = python() else { return };
    let Some(site) = RunTestbed::new("numpy", 2, "128MiB") else {
        return;
    };
    let job = "
import numpy
a = numpy.arange(1_500_000, dtype=numpy.float64).reshape(1500, 1000)
b = numpy.ascontiguousarray(a.T) * 2
c = numpy.sort(b.ravel() % 1013)
print(a.sum(), b[7, 11], c[0], c[-1], c.sum(), (a + b.reshape(a.shape)).std())
";
    let native = output(Command::new(&python).args(["-c", job]));
    for percent in LOCALS {
        let far = output(site.run(&share(48, percent), &[], &python).args(["-c", job]));
        assert!(far.status.success(), "{percent} %: {}", text(&far.stderr));
        assert_eq!(text(&far.stdout), text(&native.stdout), "{percent} %");
    }
    assert!(site.returned() > 1024);
}

/// Returns a Python interpreter, not a script, that has numpy. `None`: there is none, and the test printed
/// that it is skipped.
fn python() -> Option<PathBuf> {
    let ask = "import sys, numpy; print(sys.executable)";
    let found = ["python3", "/usr/bin/python3"].iter().find_map(|name| {
        let asked = Command::new(name).args(["-c", ask]).output().ok()?;
        asked.status.success().then(|| text(&asked.stdout))
    });
    if found.is_none() {
        skipped("no python3 has numpy");
    }
    found.map(|path| Path::new(path.trim()).to_owned())
}

/// Returns a Python interpreter that is not a script. `None`: there is none, and the test printed that it is
/// skipped.
pub(super) fn interpreter() -> Option<PathBuf> {
    let asked = Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output();
    let Some(python) = asked.ok().filter(|asked| asked.status.success()) else {
        skipped("there is no python3");
        return None;
    };
    Some(PathBuf::from(text(&python.stdout).trim()))
}

#[test]
fn an_interpreter_keeps_its_programs_values() {
    let Some(python) = interpreter() else { return };
    let Some(site) = RunTestbed::new("python", 2, "128MiB") else {
        return;
    };
    let job = "
import subprocess, hashlib
words = {str(i): [i, bytes([i % 251]) * 100] for i in range(3000)}
blocks = [bytearray(str(i).encode() * 150000) for i in range(20)]
for block in blocks: block.extend(b'end')
print(subprocess.run(['echo', 'child'], capture_output=True).stdout)
digest = hashlib.sha256()
for block in blocks: digest.update(block)
print(digest.hexdigest(), sum(v[0] + len(v[1]) for v in words.values()))
";
    let native = output(Command::new(&python).args(["-c", job]));
    let far = output(site.run("2MiB", &[], &python).args(["-c", job]));
    assert!(far.status.success(), "{}", text(&far.stderr));
    assert_eq!(text(&far.stdout), text(&native.stdout));
    assert!(site.returned() > 100);
}
