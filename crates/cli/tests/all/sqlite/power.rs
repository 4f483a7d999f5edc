//! The power fails: what was not synced is lost from the disk. Lenders are other machines and keep theirs.

use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use crate::common::disk::LoopDisk;
use crate::sqlite::{SqliteTestbed, finish, no_shell, total, wait_until};

fn power(mode: &str, rounds: u64) {
    if no_shell() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        crate::common::skipped("a loop device needs root");
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(disk) = LoopDisk::new(directory.path()) else {
        return;
    };
    let mut site = SqliteTestbed::with(directory, Some(disk), &format!("sqlite-power-{mode}"), 2);
    let made = site.shell(&format!(
        "pragma journal_mode={mode};\ncreate table t(n integer primary key, filler);\n"
    ));
    assert_eq!(made.code, 0, "{}", made.err);
    let said = [0, 1].map(|number| site.directory.path().join(format!("said-{number}")));
    let mut again = 0;
    // Now and then the disk has everything: one that has no journal yet was the last to commit.
    for round in 0..20 {
        if round >= rounds && again > 0 {
            break;
        }
        let first = 1 + round * 40_002;
        let mut writers = [0, 1].map(|number| site.writer(mode, first + number, 2, &said[number as usize]));
        // Until then commits go to the disk, which has them.
        wait_until("one has a journal", || site.seats_taken() > 0);
        let before = total(&said);
        wait_until("some commits", || total(&said) > before + 120);
        std::thread::sleep(Duration::from_millis(200 + round * 71 % 300));
        writers[0].kill().unwrap();
        std::thread::sleep(Duration::from_millis(round * 31 % 50));
        writers[1].kill().unwrap();
        for writer in &mut writers {
            writer.wait().unwrap();
        }
        site.disk.as_mut().unwrap().power_off();
        // The machine goes on, and its memory does not show that the disk has lost something.
        let recovered = finish(site.netram("recover").arg("--json"));
        assert_eq!(recovered.code, 0, "{}", recovered.err);
        let recovered: serde_json::Value = serde_json::from_str(&recovered.out).unwrap();
        again += recovered["records"].as_u64().unwrap();
        said.iter().for_each(|said| assert!(site.check(said) > 10));
    }
    assert!(again > 0, "the disk had everything each time");
    let root = site.disk.as_ref().unwrap().at.clone();
    let released = finish(&mut site.netram("detach"));
    assert_eq!(released.code, 0, "{}", released.err);
    unmount(&root, UnmountFlags::DETACH).unwrap();
}

#[test]
fn commits_in_wal_mode_survive_a_power_failure() {
    power("wal", 5);
}

#[test]
fn commits_with_a_rollback_journal_survive_a_power_failure() {
    power("delete", 5);
}
