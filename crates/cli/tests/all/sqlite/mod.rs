//! SQLite's own shell with netram's extension, real lenders and real SIGKILLs: what was committed is there
//! afterwards.

mod failing_disk;
mod fork;
mod input;
mod kills;
mod metrics;
mod orders;
mod power;
mod rounds;
mod seats;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::disk::LoopDisk;
use crate::common::{CommandOutput, LenderProcess, finish, netram, ran, start};
use tempfile::TempDir;

/// Says aloud why a test is not made here. `true`: it is not.
fn no_shell() -> bool {
    let there = Command::new("sqlite3").arg("--version").output().is_ok();
    if !there {
        crate::common::skipped("there is no `sqlite3`, the shell of SQLite");
    }
    !there
}

/// The extension.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| crate::common::library("netram-sqlite-extension"))
}

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A database that netram holds, and its lenders.
struct SqliteTestbed {
    lenders: Vec<LenderProcess>,
    /// Before the directory, in which it is mounted.
    disk: Option<LoopDisk>,
    directory: TempDir,
    /// Where the database is, if not in the directory or on the disk.
    root: Option<PathBuf>,
    name: String,
}

impl SqliteTestbed {
    fn new(name: &str, lenders: usize) -> SqliteTestbed {
        // Not in /tmp, which may be memory.
        SqliteTestbed::with(tempfile::tempdir_in("/var/tmp").unwrap(), None, name, lenders)
    }

    fn with(directory: TempDir, disk: Option<LoopDisk>, name: &str, lenders: usize) -> SqliteTestbed {
        SqliteTestbed::made(directory, None, disk, name, lenders)
    }

    /// With the database in a directory that is anywhere.
    fn at(directory: TempDir, root: PathBuf, name: &str, lenders: usize) -> SqliteTestbed {
        SqliteTestbed::made(directory, Some(root), None, name, lenders)
    }

    fn made(
        directory: TempDir,
        root: Option<PathBuf>,
        disk: Option<LoopDisk>,
        name: &str,
        lenders: usize,
    ) -> SqliteTestbed {
        let mut site = SqliteTestbed {
            directory,
            root,
            lenders: Vec::new(),
            disk,
            name: name.to_owned(),
        };
        for number in 0..lenders {
            let lender = site.lender(number);
            site.lenders.push(lender);
        }
        site.create(2, "1MiB");
        site
    }

    /// Puts the database under netram, with this many journals of this size.
    fn create(&self, seats: usize, bytes: &str) {
        let site = self;
        let mut command = site.netram("create");
        command.args(["--insecure", "--one-domain", "--seats", &seats.to_string()]);
        command.args(["--journal-size", bytes, "--patience", "2s"]);
        for lender in &site.lenders {
            command.args(["--lender", &lender.address]);
        }
        let made = finish(&mut command);
        assert_eq!(made.code, 0, "{}", made.err);
    }

    /// The same with other journals; nothing was written yet.
    fn with_journals(self, seats: usize, bytes: &str) -> SqliteTestbed {
        let released = finish(&mut self.netram("detach"));
        assert_eq!(released.code, 0, "{}", released.err);
        self.create(seats, bytes);
        self
    }

    fn lender(&self, number: usize) -> LenderProcess {
        let socket = format!("unix:{}/lender-{number}", self.directory.path().display());
        let name = format!("{}-{number}", self.name);
        LenderProcess::start(&name, &["--insecure", "--listen", &socket])
    }

    fn database(&self) -> PathBuf {
        let root = self.disk.as_ref().map_or(self.directory.path(), |disk| &disk.at);
        self.root.as_deref().unwrap_or(root).join("app.db")
    }

    fn netram(&self, what: &str) -> Command {
        let mut command = netram();
        command.args(["sqlite", what]).arg(self.database());
        command
    }

    /// How SQLite's shell begins.
    fn prelude(&self) -> String {
        format!(
            ".load {}\n.open file:{}?vfs=netram\n.timeout 60000\n",
            library().with_extension("").display(),
            self.database().display()
        )
    }

    /// SQLite's shell, on this.
    fn shell(&self, text: &str) -> CommandOutput {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-bail"]).stdin(Stdio::piped());
        let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let text = self.prelude() + text;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        ran(child.wait_with_output().unwrap())
    }

    /// Starts a process that inserts its own numbers, each in its own transaction, and reports those that are
    /// committed.
    fn writer(&self, mode: &str, from: u64, step: u64, said: &Path) -> Child {
        let pragmas = format!("pragma journal_mode={mode};\npragma wal_autocheckpoint=50;");
        self.writing(&pragmas, from, step, said, &[])
    }

    /// The same without SQLite's own checkpoints, which bring to the database what other processes have
    /// committed. With these in its environment.
    fn writer_to_wal(&self, from: u64, step: u64, said: &Path, set: &[(&str, &Path)]) -> Child {
        let pragmas = "pragma journal_mode=wal;\npragma wal_autocheckpoint=0;";
        self.writing(pragmas, from, step, said, set)
    }

    /// The same, with a pause after each commit: one without has done all of its commits in a few seconds.
    fn patient_writer_to_wal(&self, from: u64, step: u64, said: &Path) -> Child {
        let pragmas = "pragma journal_mode=wal;\npragma wal_autocheckpoint=0;";
        self.writing_with(pragmas, ".shell sleep 0.002\n", from, step, said, &[])
    }

    fn writing(&self, pragmas: &str, from: u64, step: u64, said: &Path, set: &[(&str, &Path)]) -> Child {
        self.writing_with(pragmas, "", from, step, said, set)
    }

    /// A writer that does `between` after each commit.
    fn writing_with(
        &self,
        pragmas: &str,
        between: &str,
        from: u64,
        step: u64,
        said: &Path,
        set: &[(&str, &Path)],
    ) -> Child {
        // Each process reads its own script, which does not change while it runs.
        let script = said.with_extension("script");
        // What the settings say is no commit.
        let mut text = self.prelude() + ".output /dev/null\n";
        text.push_str(&format!("{pragmas}\npragma synchronous=full;\n.output stdout\n"));
        for number in 0..20_000 {
            let number = from + number * step;
            let bytes = number * 37 % 3000;
            text.push_str(&format!(
                "insert into t values({number}, zeroblob({bytes}));\nselect {number};\n{between}"
            ));
        }
        fs::write(&script, text).unwrap();
        let told = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(said)
            .unwrap();
        // Line by line, so that no report is delayed.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "sqlite3", "-batch", "-bail"]);
        for (name, value) in set {
            command.env(name, value);
        }
        command.stdin(fs::File::open(&script).unwrap()).stdout(told);
        start(command.stderr(Stdio::null()))
    }

    /// Returns a Python program with `db` open, for a Python whose SQLite loads extensions. `None`: there is
    /// none, and the test printed that it is skipped.
    fn python(&self, text: &str) -> Option<Command> {
        let can = "import sqlite3; sqlite3.connect(':memory:').enable_load_extension(True)";
        let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
            let ran = Command::new(python).args(["-c", can]).output();
            ran.is_ok_and(|ran| ran.status.success())
        });
        let Some(python) = python else {
            crate::common::skipped("there is no Python whose sqlite3 loads extensions");
            return None;
        };
        let prelude = format!(
            "import os, resource, signal, sqlite3, sys, time\n\
             signal.alarm(60)\n\
             loader = sqlite3.connect(':memory:')\n\
             loader.enable_load_extension(True)\n\
             loader.load_extension({:?})\n\
             path = {:?}\n\
             def connect(): return sqlite3.connect('file:' + path + '?vfs=netram', uri=True, isolation_level=None)\n\
             db = connect()\n\
             db.execute('pragma synchronous=full')\n",
            library().with_extension("").display().to_string(),
            self.database().display().to_string()
        );
        let mut command = Command::new(python);
        command.args(["-c", &(prelude + text)]);
        Some(command)
    }

    /// How many of its journals processes have.
    fn seats_taken(&self) -> u64 {
        let said = finish(self.netram("status").arg("--json"));
        let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        status["seats_taken"].as_u64().unwrap()
    }

    /// Checks that every number reported as committed is there, and that the database is sound. Returns their
    /// count.
    fn check(&self, said: &Path) -> usize {
        let found = self.shell("pragma integrity_check;\nselect n from t order by n;\n");
        assert_eq!(found.code, 0, "{}", found.err);
        let mut lines = found.out.lines();
        assert_eq!(lines.next(), Some("ok"), "{}", found.out);
        let there: std::collections::HashSet<u64> = lines.map(|line| line.parse().unwrap()).collect();
        let text = fs::read_to_string(said).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for number in whole.lines().filter_map(|line| line.parse::<u64>().ok()) {
            assert!(there.contains(&number), "{number} was committed, and is gone");
        }
        there.len()
    }
}

/// Returns the bytes of a process's reports.
fn said_bytes(said: &Path) -> u64 {
    fs::metadata(said).map_or(0, |found| found.len())
}

/// Returns the bytes of all reports.
fn total(said: &[PathBuf]) -> u64 {
    said.iter().map(|said| said_bytes(said)).sum()
}
