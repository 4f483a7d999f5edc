//! Several processes commit, some are killed and others come in their place, and the power fails: over and
//! over.

use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use crate::common::disk::LoopDisk;
use crate::sqlite::{SqliteTestbed, finish, no_shell, total, wait_until};

/// Rounds after which the table is emptied: the disk is small.
const EMPTIED_EVERY: u64 = 20;
/// Numbers that a process has for itself.
const OWN: u64 = 100_000;

struct Rounds {
    site: SqliteTestbed,
    mode: &'static str,
    processes: u64,
    next: u64,
    said: Vec<PathBuf>,
    again: u64,
}

impl Rounds {
    /// Returns `None` if this machine lacks something; the test printed that it is skipped.
    fn new(mode: &'static str, processes: u64, seats: usize) -> Option<Rounds> {
        if no_shell() {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            crate::common::skipped("a loop device needs root");
            return None;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = LoopDisk::of_mib(directory.path(), 32)?;
        let name = format!("sqlite-rounds-{mode}-{seats}");
        let site = SqliteTestbed::with(directory, Some(disk), &name, 2).with_journals(seats, "1MiB");
        let made = site.shell(&format!(
            "pragma journal_mode={mode};\ncreate table t(n integer primary key, filler);\n"
        ));
        assert_eq!(made.code, 0, "{}", made.err);
        Some(Rounds {
            site,
            mode,
            processes,
            next: 0,
            said: Vec::new(),
            again: 0,
        })
    }

    fn begin(&mut self) -> Child {
        self.next += 1;
        let said = self
            .site
            .directory
            .path()
            .join(format!("said-{}", self.next % (self.processes + 1)));
        let child = self.site.writer(self.mode, self.next * OWN, 1, &said);
        if !self.said.contains(&said) {
            self.said.push(said);
        }
        child
    }

    fn round(&mut self, round: u64) {
        let mut writers: Vec<Child> = (0..self.processes).map(|_| self.begin()).collect();
        // Until then commits go to the disk, which has them.
        wait_until("one has a journal", || self.site.seats_taken() > 0);
        let before = total(&self.said);
        wait_until("some commits", || total(&self.said) > before + 60);
        std::thread::sleep(Duration::from_millis(round * 53 % 120));
        // Its journal is free from now on, and one that has none, or the new one, takes it.
        let victim = (round % self.processes) as usize;
        writers[victim].kill().unwrap();
        writers.push(self.begin());
        std::thread::sleep(Duration::from_millis(round * 37 % 150));
        for writer in &mut writers {
            writer.kill().unwrap();
            std::thread::sleep(Duration::from_millis(round * 31 % 7));
        }
        for writer in &mut writers {
            writer.wait().unwrap();
        }
        let site = &mut self.site;
        site.disk.as_mut().unwrap().power_off();
        let is_lost = round % 8 == 5;
        if is_lost {
            // Each of the two has all of it.
            site.lenders.remove(0);
        }
        // The machine goes on, and its memory does not show that the disk has lost something.
        let recovered = finish(site.netram("recover").arg("--json"));
        assert_eq!(recovered.code, 0, "round {round}: {}", recovered.err);
        let recovered: serde_json::Value = serde_json::from_str(&recovered.out).unwrap();
        self.again += recovered["records"].as_u64().unwrap();
        if is_lost {
            let lender = site.lender(0);
            site.lenders.insert(0, lender);
        }
        self.said.iter().filter(|said| said.exists()).for_each(|said| {
            site.check(said);
        });
        if round % EMPTIED_EVERY == EMPTIED_EVERY - 1 {
            let emptied = site.shell("delete from t;\n");
            assert_eq!(emptied.code, 0, "{}", emptied.err);
            self.said
                .drain(..)
                .for_each(|said| fs::remove_file(said).unwrap());
        }
    }
}

fn rounds(mode: &'static str, processes: u64, seats: usize, count: u64) {
    let Some(mut rounds) = Rounds::new(mode, processes, seats) else {
        return;
    };
    for round in 0..count {
        rounds.round(round);
        if round % 50 == 49 {
            eprintln!(
                "{mode}, {processes} processes, {seats} journals: {} rounds, {} records done again",
                round + 1,
                rounds.again
            );
        }
    }
    eprintln!(
        "{mode}, {processes} processes, {seats} journals: {count} rounds, nothing lost, {} records done again",
        rounds.again
    );
}

#[test]
fn nothing_is_lost_by_kills_before_a_power_failure() {
    rounds("wal", 2, 1, 2);
}

#[test]
#[ignore = "a quarter of an hour: cargo test -p netram-cli --test all sqlite::rounds -- --ignored --nocapture"]
fn a_thousand_rounds() {
    let rounds_wanted = std::env::var("NETRAM_KILL_ROUNDS").map_or(1000, |text| text.parse().unwrap());
    for (mode, processes, seats) in [("wal", 2, 1), ("delete", 2, 2), ("wal", 3, 2), ("persist", 3, 1)] {
        rounds(mode, processes, seats, rounds_wanted / 4 + 1);
    }
}
