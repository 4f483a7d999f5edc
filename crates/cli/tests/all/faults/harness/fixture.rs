//! Where one test keeps its files, and the seed of its faults.

use std::io::Write;
use std::path::{Path, PathBuf};

use netram_journal::Journal;
use netram_transport::ClusterKey;
use tempfile::TempDir;

use super::random::FaultsRandom;
use super::{FaultsClient, FaultsLender};
use crate::faults::worker::{WorkerSettings, WorkerTask, bank, volume};

/// Lines of each process's log that a failed test shows.
const LOG_LINES_SHOWN: usize = 25;

/// One test's files: journals and segments on the disk, lenders' memory and sockets in memory. Removed at the
/// end.
pub(crate) struct FaultsFixture {
    disk: TempDir,
    memory: TempDir,
    pub(crate) random: FaultsRandom,
    rounds: u64,
}

impl FaultsFixture {
    pub(crate) fn new() -> FaultsFixture {
        let seed = std::env::var("NETRAM_FAULT_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| FaultsRandom::here().next() % 1_000_000);
        let rounds = std::env::var("NETRAM_FAULT_ROUNDS")
            .ok()
            .and_then(|rounds| rounds.parse().ok());
        eprintln!("replay with NETRAM_FAULT_SEED={seed}");
        let disk = tempfile::Builder::new()
            .prefix("faults-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"));
        let memory = tempfile::Builder::new()
            .prefix("netram-faults-")
            .tempdir_in("/dev/shm");
        let place = FaultsFixture {
            disk: disk.expect("the build directory takes files"),
            memory: memory.expect("tests need /dev/shm"),
            random: FaultsRandom(seed),
            rounds: rounds.unwrap_or(1).max(1),
        };
        ClusterKey::generate()
            .save_new(&place.key())
            .expect("a key is saved");
        place
    }

    /// How often to try a fault that is tried `few` times in a short run.
    pub(crate) fn rounds(&self, few: u64) -> u64 {
        few * self.rounds
    }

    pub(crate) fn disk(&self) -> &Path {
        self.disk.path()
    }

    pub(crate) fn memory(&self) -> &Path {
        self.memory.path()
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.memory.path().join("cluster.key")
    }

    /// A lender that listens on a socket of this place.
    pub(crate) fn lender(&self, name: &str) -> FaultsLender {
        FaultsLender::start(
            self,
            name,
            &format!("unix:{}", self.memory().join(name).display()),
            &[],
            &[],
        )
    }

    /// A client with a new journal of `log_bytes` in the directory `at`, which numbers records and gives up
    /// old ones.
    pub(crate) fn journal_in(
        &self,
        at: &Path,
        log_bytes: u64,
        lenders: &[&FaultsLender],
        members: usize,
    ) -> FaultsClient {
        let journal = at.join("journal");
        Journal::create(&journal, log_bytes).expect("a journal is made");
        let work = WorkerSettings {
            journal,
            lenders: lenders.iter().map(|lender| lender.address.clone()).collect(),
            auto: None,
            key: Some(self.key()),
            multicast: None,
            rule: "all".to_owned(),
            members,
            window_bytes: 256 * 1024,
            disk_delay_ms: 1,
            patience_ms: 4000,
            accept_loss: false,
            durability: "remote".to_owned(),
            threads: 2,
            bytes_max: 600,
            task: WorkerTask::Journal { trim: true },
            commits: None,
            acked: vec![0; bank::THREADS],
            trimmed: 0,
        };
        FaultsClient::new(work, self.memory().join("client.log"))
    }

    /// The same with a log so small that it wraps all the time.
    pub(crate) fn wrapping(&self, lenders: &[&FaultsLender], members: usize) -> FaultsClient {
        let mut client = self.journal_in(self.disk(), 128 * 1024, lenders, members);
        client.work.window_bytes = 32 * 1024;
        client
    }

    /// A client that numbers records in a log large enough for any test.
    pub(crate) fn journal(&self, lenders: &[&FaultsLender], members: usize) -> FaultsClient {
        self.journal_in(self.disk(), 64 << 20, lenders, members)
    }

    /// A client that keeps a bank in the directory `at`, made and closed once.
    pub(crate) fn bank_in(
        &self,
        at: &Path,
        lenders: &[&FaultsLender],
        members: usize,
        sparse: bool,
    ) -> FaultsClient {
        let mut client = self.journal_in(at, 256 * 1024, lenders, members);
        client.work.window_bytes = 64 * 1024;
        client.work.task = WorkerTask::Bank {
            segment: at.join("bank.data"),
            table: at.join("bank.segments"),
            sparse,
        };
        client.work.threads = 3;
        client
    }

    /// A client that numbers the blocks of a volume, made here. It has no lenders.
    pub(crate) fn volume(&self) -> FaultsClient {
        let mut client = self.journal_in(self.memory(), 64 * 1024, &[], 0);
        client.work.journal = self.disk().join("volume");
        client.work.task = WorkerTask::Volume;
        client.work.threads = 1;
        let bytes = volume::BLOCKS * 4096;
        netram_volume::Volume::create(&client.work.journal, bytes, 256 * 1024).expect("a volume is made");
        client
    }

    pub(crate) fn bank(&self, lenders: &[&FaultsLender], members: usize) -> FaultsClient {
        let mut client = self.bank_in(self.disk(), lenders, members, false);
        client.recover();
        client
    }
}

impl Drop for FaultsFixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let Ok(entries) = std::fs::read_dir(self.memory.path()) else {
            return;
        };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "log") {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let shown = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
                eprintln!("--- {}\n{}", path.display(), shown.join("\n"));
            }
        }
    }
}

/// Says that a test cannot run here, past the test runner that would keep it to itself, on a line of its own.
pub(crate) fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}
