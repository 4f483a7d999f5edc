//! Processes are killed, and lenders, in the middle of commits.

use std::time::Duration;

use crate::sqlite::{SqliteTestbed, no_shell, said_bytes, total, wait_until};

/// Two processes write, and one of them is killed, or both; now and then a lender is lost as well.
fn kills(mode: &str, rounds: u64) {
    if no_shell() {
        return;
    }
    let mut site = SqliteTestbed::new(&format!("sqlite-{mode}"), 2);
    let made = site.shell(&format!(
        "pragma journal_mode={mode};\ncreate table t(n integer primary key, filler);\n"
    ));
    assert_eq!(made.code, 0, "{}", made.err);
    let said = [0, 1].map(|number| site.directory.path().join(format!("said-{number}")));
    for round in 0..rounds {
        let first = 1 + round * 40_002;
        let mut writers = [0, 1].map(|number| site.writer(mode, first + number, 2, &said[number as usize]));
        // SQLite's locks are not fair: one of them may wait for long.
        let before = total(&said);
        wait_until("some commits", || total(&said) > before + 80);
        std::thread::sleep(Duration::from_millis(round * 53 % 300));
        writers[0].kill().unwrap();
        if round % 3 == 1 {
            site.lenders.remove(0);
        }
        // The other one goes on with the lender that is left.
        let before = said_bytes(&said[1]);
        wait_until("more commits of the other", || said_bytes(&said[1]) > before + 40);
        writers[1].kill().unwrap();
        for writer in &mut writers {
            writer.wait().unwrap();
        }
        if site.lenders.len() < 2 {
            let lender = site.lender(0);
            site.lenders.insert(0, lender);
        }
        said.iter().for_each(|said| assert!(site.check(said) > 10));
    }
    let released = crate::sqlite::finish(&mut site.netram("detach"));
    assert_eq!(released.code, 0, "{}", released.err);
    let found = crate::sqlite::finish(
        std::process::Command::new("sqlite3")
            .arg(site.database())
            .arg("pragma integrity_check; select count(*) > 10 from t"),
    );
    assert_eq!(found.out.trim(), "ok\n1", "{}", found.err);
}

#[test]
fn commits_in_wal_mode_survive_any_kill() {
    kills("wal", 4);
}

#[test]
fn commits_with_a_deleted_rollback_journal_survive_any_kill() {
    kills("delete", 4);
}

#[test]
fn commits_with_a_persistent_rollback_journal_survive_any_kill() {
    kills("persist", 3);
}

#[test]
#[ignore = "an hour: cargo test -p netram-cli --test all sqlite::kills -- --ignored"]
fn thousands_of_rounds() {
    for mode in ["wal", "delete", "truncate", "persist"] {
        kills(mode, 500);
    }
}
