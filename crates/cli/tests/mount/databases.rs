//! Databases as they are, their logs on a mount: what they acknowledged is there, whoever was killed.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Ran, finish, forks};
use crate::{Mounted, cannot_mount};

/// What was acknowledged, a number a line, the last one perhaps cut.
fn last_said(said: &Path) -> u64 {
    let text = fs::read_to_string(said).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let mut numbers = whole.lines().rev().filter_map(|line| line.trim().parse().ok());
    numbers.next().unwrap_or(0)
}

/// Inserts numbers, each in a transaction of its own, and says which is committed.
const SQLITE: &str = r"
import sqlite3, sys
path, mode, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
base = sqlite3.connect(path, isolation_level=None)
base.execute(f'pragma journal_mode={mode}')
base.execute('pragma synchronous=full')
base.execute('create table if not exists t(n integer primary key, filler text)')
while True:
    number += 1
    base.execute('insert into t values(?, ?)', (number, 'x' * (number % 2000)))
    print(number, flush=True)
";

/// What is in it, after its integrity was checked: how many numbers, and the last.
const SQLITE_CHECK: &str = r"
import sqlite3, sys
base = sqlite3.connect(sys.argv[1])
assert base.execute('pragma integrity_check').fetchall() == [('ok',)]
print(*base.execute('select count(*), coalesce(max(n), 0) from t').fetchone())
";

fn sqlite(mode: &str, rounds: u64) {
    let mut mounted = Mounted::new(&format!("sqlite-{mode}"), 2, "2MiB");
    let (path, said) = (mounted.dir().join("app.db"), mounted.folder.path().join("said"));
    fs::write(&said, "").unwrap();
    let mut last = 0;
    for round in 0..rounds {
        let mut child = {
            let _alone = forks();
            Command::new("python3")
                .args(["-c", SQLITE])
                .arg(&path)
                .args([mode, &last.to_string()])
                .stdout(OpenOptions::new().append(true).open(&said).unwrap())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        std::thread::sleep(Duration::from_millis(150 + round * 53 % 300));
        // The one or the other first.
        if round % 2 == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
            mounted.kill();
        } else {
            mounted.kill();
            child.wait().unwrap();
        }
        mounted.mount();
        let ran = finish(Command::new("python3").args(["-c", SQLITE_CHECK]).arg(&path));
        assert_eq!(ran.code, 0, "{}", ran.err);
        let mut numbers = ran
            .out
            .split_whitespace()
            .map(|number| number.parse::<u64>().unwrap());
        let (count, there) = (numbers.next().unwrap(), numbers.next().unwrap());
        assert_eq!(count, there, "each of them");
        let said = last_said(&said);
        assert!(there >= said, "{said} were committed, and {there} are there");
        last = there;
    }
    assert!(last > rounds * 5, "{last}");
}

#[test]
fn sqlite_has_what_it_committed_to_its_write_ahead_log() {
    if !cannot_mount() {
        sqlite("wal", 6);
    }
}

#[test]
fn sqlite_has_what_it_committed_with_a_rollback_journal() {
    if !cannot_mount() {
        sqlite("delete", 6);
    }
}

/// The programs of PostgreSQL, which Debian keeps apart.
fn postgres_programs() -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|path| path.join("postgres").exists())
        .collect();
    versions.sort();
    versions.pop()
}

fn number_of(user: &str) -> Option<u32> {
    let ran = finish(Command::new("id").args(["-u", user]));
    ran.out.trim().parse().ok()
}

/// A PostgreSQL whose log is on a mount.
struct Postgres {
    programs: PathBuf,
    folder: PathBuf,
    user: u32,
    server: Option<Child>,
}

impl Postgres {
    fn new(programs: PathBuf, user: u32, mounted: &Mounted) -> Postgres {
        let folder = mounted.folder.path().join("postgres");
        fs::create_dir(&folder).unwrap();
        for path in [mounted.folder.path(), &folder, &mounted.dir()] {
            chown(path, Some(user), Some(user)).unwrap();
        }
        let postgres = Postgres {
            programs,
            folder,
            user,
            server: None,
        };
        let mut initdb = postgres.program("initdb");
        initdb
            .args(["--auth=trust", "--username=postgres", "-D"])
            .arg(postgres.data());
        let made = finish(initdb.arg("-X").arg(mounted.dir()));
        assert_eq!(made.code, 0, "{}{}", made.out, made.err);
        postgres
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={}", self.user), format!("--regid={}", self.user)])
            .args(["--clear-groups", "--"])
            .arg(self.programs.join(name))
            .current_dir(&self.folder);
        command
    }

    fn start(&mut self) {
        let log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.folder.join("log"))
            .unwrap();
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(&self.folder);
        command.args([
            "-c",
            "listen_addresses=",
            "-c",
            "wal_recycle=on",
            "-c",
            "min_wal_size=32MB",
        ]);
        command
            .args(["-c", "max_wal_size=48MB"])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.server = Some(crate::common::start(&mut command));
        for _ in 0..1200 {
            let asked = self.ask("select 1");
            if asked.code == 0 {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!(
            "it did not start: {}",
            fs::read_to_string(self.folder.join("log")).unwrap()
        );
    }

    fn ask(&self, question: &str) -> Ran {
        finish(
            self.program("psql")
                .args(["-X", "-A", "-t", "-h"])
                .arg(&self.folder)
                .args(["-U", "postgres", "-c", question]),
        )
    }

    /// SIGKILL, to all of its processes.
    fn kill(&mut self) {
        let mut server = self.server.take().expect("it runs");
        let id = server.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        server.kill().unwrap();
        for child in children.split_whitespace() {
            if let Some(pid) = child.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        server.wait().unwrap();
        let gone = |child: &&str| !Path::new(&format!("/proc/{child}")).exists();
        for _ in 0..200 {
            if children.split_whitespace().all(|child| gone(&child)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.kill();
        }
    }
}

#[test]
fn postgresql_has_every_commit_that_it_acknowledged() {
    if cannot_mount() {
        return;
    }
    let (Some(programs), Some(user)) = (postgres_programs(), number_of("postgres")) else {
        eprintln!("SKIPPED: no PostgreSQL here (`apt-get install postgresql`)");
        return;
    };
    let mut mounted = Mounted::new("postgresql", 3, "4MiB");
    let mut postgres = Postgres::new(programs, user, &mounted);
    postgres.start();
    let made = postgres.ask("create table t(n bigint primary key, filler text)");
    assert_eq!(made.code, 0, "{}", made.err);
    let said = mounted.folder.path().join("said");
    fs::write(&said, "").unwrap();
    let mut last = 0_u64;
    for round in 0..5_u64 {
        let script = postgres.folder.join("script");
        let mut lines = fs::File::create(&script).unwrap();
        for number in last + 1..last + 20_000 {
            let filler = "x".repeat((number % 900) as usize);
            writeln!(
                lines,
                "insert into t values({number}, '{filler}');\n\\echo {number}"
            )
            .unwrap();
        }
        drop(lines);
        let mut client = {
            let _alone = forks();
            postgres
                .program("psql")
                .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-h"])
                .arg(&postgres.folder)
                .arg("-f")
                .arg(&script)
                .stdout(OpenOptions::new().append(true).open(&said).unwrap())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        std::thread::sleep(Duration::from_millis(600 + round * 170));
        match round {
            // The database; the mount beneath it; a lender, and then both.
            0 => postgres.kill(),
            1 => {
                mounted.kill();
                postgres.kill();
            }
            2 => {
                postgres.kill();
                mounted.kill();
            }
            _ => {
                mounted.lenders.truncate(2);
                std::thread::sleep(Duration::from_millis(700));
                mounted.kill();
                postgres.kill();
            }
        }
        client.wait().unwrap();
        if mounted.server.is_none() {
            mounted.mount();
        }
        postgres.start();
        let there = postgres.ask("select count(*), coalesce(max(n), 0) from t");
        assert_eq!(there.code, 0, "{}", there.err);
        let (count, max) = there.out.trim().split_once('|').unwrap();
        assert_eq!(count, max, "each of them");
        let (there, said) = (max.parse::<u64>().unwrap(), last_said(&said));
        assert!(there >= said, "{said} were committed, and {there} are there");
        assert!(there > last, "nothing was committed in round {round}");
        last = there;
    }
}
