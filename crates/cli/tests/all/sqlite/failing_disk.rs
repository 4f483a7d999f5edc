//! A disk that fails a write and goes on: afterwards the page cache has bytes that the disk never got.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::disk::FailingDisk;
use crate::common::{finish, ran, start};
use crate::sqlite::{SqliteTestbed, no_shell, said_bytes, wait_until};

/// A commit failed, and its frames stayed in the page cache as clean. The next opening let SQLite take them
/// as committed and append behind them. After a power cut the chain of the log ended before them, and
/// everything behind was lost, although lenders had held it.
#[test]
fn commits_after_a_failed_sync_survive_a_power_failure() {
    if no_shell() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("a loop device needs root");
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(disk) = FailingDisk::new() else {
        return;
    };
    let site = SqliteTestbed::at(directory, disk.at.clone(), "sqlite-failing", 2);
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, filler);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let (said, script) = (site.directory.path().join("said"), site.prelude());
    let mut shell = Command::new("sqlite3");
    shell
        .args(["-batch"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut shell = start(shell.stderr(Stdio::piped()));
    let mut input = shell.stdin.take().unwrap();
    let text = "pragma synchronous=full;\npragma wal_autocheckpoint=0;\ninsert into t values(1, 'x');\n";
    input.write_all((script + text).as_bytes()).unwrap();
    wait_until("it has a journal", || site.seats_taken() == 1);
    if let Err(why) = disk.fail() {
        drop(input);
        shell.wait().unwrap();
        crate::common::skipped(format_args!("the disk's free blocks cannot be taken away: {why}"));
        return;
    }
    // By the disk, as large as it is.
    input
        .write_all(b"insert into t values(2, randomblob(400000));\n")
        .unwrap();
    drop(input);
    let failed = ran(shell.wait_with_output().unwrap());
    assert!(
        failed.err.contains("the disk failed"),
        "{} {}",
        failed.out,
        failed.err
    );
    disk.mend();
    // SQLite's own checkpoint would bring the frames to the database, and hide that their log is torn.
    let mut writer = site.writer_to_wal(10, 1, &said, &[]);
    wait_until("some commits", || said_bytes(&said) > 300);
    wait_until("it has a journal", || site.seats_taken() == 1);
    let before = said_bytes(&said);
    wait_until("some commits by the journal", || said_bytes(&said) > before + 200);
    writer.kill().unwrap();
    writer.wait().unwrap();
    disk.power_off();
    let recovered = finish(&mut site.netram("recover"));
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(site.check(&said) > 10);
}
