//! SQLite, its folder on a mount: what it committed is there, whoever was killed.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{finish, forks};
use crate::{Mounted, cannot_mount, wait_until};

/// What was acknowledged, a number a line, the last one perhaps cut.
pub(crate) fn last_said(said: &Path) -> u64 {
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
        wait_until("some commits", || last_said(&said) > last + 5);
        std::thread::sleep(Duration::from_millis(round * 53 % 300));
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
