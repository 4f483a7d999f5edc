//! SQLite's own shell with netram's extension, real lenders and real SIGKILLs: what was committed is there afterwards.

mod input;
mod kills;
mod power;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::common::disk::Disk;
use crate::common::{Lender, Ran, finish, netram, ran, start};
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
    LIBRARY.get_or_init(|| crate::common::library("netram-sqlext"))
}

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A database that netram holds, and its lenders.
struct Site {
    folder: TempDir,
    lenders: Vec<Lender>,
    disk: Option<Disk>,
    name: String,
}

impl Site {
    fn new(name: &str, lenders: usize) -> Site {
        // Not in /tmp, which may be memory.
        Site::with(tempfile::tempdir_in("/var/tmp").unwrap(), None, name, lenders)
    }

    fn with(folder: TempDir, disk: Option<Disk>, name: &str, lenders: usize) -> Site {
        let mut site = Site {
            folder,
            lenders: Vec::new(),
            disk,
            name: name.to_owned(),
        };
        for number in 0..lenders {
            let lender = site.lender(number);
            site.lenders.push(lender);
        }
        let mut command = site.netram("create");
        command.args(["--insecure", "--one-domain", "--seats", "2"]);
        command.args(["--journal-size", "1MiB", "--patience", "2s"]);
        for lender in &site.lenders {
            command.args(["--lender", &lender.address]);
        }
        let made = finish(&mut command);
        assert_eq!(made.code, 0, "{}", made.err);
        site
    }

    fn lender(&self, number: usize) -> Lender {
        let socket = format!("unix:{}/lender-{number}", self.folder.path().display());
        let name = format!("{}-{number}", self.name);
        Lender::start(&name, &["--insecure", "--listen", &socket])
    }

    fn database(&self) -> PathBuf {
        let root = self.disk.as_ref().map_or(self.folder.path(), |disk| &disk.at);
        root.join("app.db")
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
    fn shell(&self, text: &str) -> Ran {
        let mut command = Command::new("sqlite3");
        command.args(["-batch", "-bail"]).stdin(Stdio::piped());
        let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let text = self.prelude() + text;
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        ran(child.wait_with_output().unwrap())
    }

    /// A process that inserts numbers of its own, each in a transaction of its own, and says which are committed.
    fn writer(&self, mode: &str, from: u64, step: u64, said: &Path) -> Child {
        let script = self.folder.path().join(format!("script-{}", from % step));
        // What the settings say is no commit.
        let mut text = self.prelude() + ".output /dev/null\n";
        text.push_str(&format!(
            "pragma journal_mode={mode};\npragma synchronous=full;\n"
        ));
        text.push_str("pragma wal_autocheckpoint=50;\n.output stdout\n");
        for number in 0..20_000 {
            let number = from + number * step;
            let bytes = number * 37 % 3000;
            text.push_str(&format!(
                "insert into t values({number}, zeroblob({bytes}));\nselect {number};\n"
            ));
        }
        fs::write(&script, text).unwrap();
        let told = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(said)
            .unwrap();
        // Line by line, so that nothing is said late.
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "sqlite3", "-batch", "-bail"]);
        command.stdin(fs::File::open(&script).unwrap()).stdout(told);
        start(command.stderr(Stdio::null()))
    }

    /// How many of its journals processes have.
    fn seats_taken(&self) -> u64 {
        let said = finish(self.netram("status").arg("--json"));
        let status: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        status["seats_taken"].as_u64().unwrap()
    }

    /// Every number that was said to be committed is there, and the database is whole. How many there are.
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

/// How much was said.
fn said_bytes(said: &Path) -> u64 {
    fs::metadata(said).map_or(0, |found| found.len())
}

/// How much was said by all of them.
fn total(said: &[PathBuf]) -> u64 {
    said.iter().map(|said| said_bytes(said)).sum()
}
