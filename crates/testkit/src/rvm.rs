//! Recoverable memory for tests of its tools.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode};
use netram_store::{OpenStore, Store, StoreSettings};
use serde_json::Value;

use super::{CommandOutput, finish, forks, netram};

/// A log with one segment in a temporary directory.
pub struct RvmFixture {
    pub directory: tempfile::TempDir,
}

impl RvmFixture {
    pub fn new() -> RvmFixture {
        let place = RvmFixture {
            directory: tempfile::tempdir().unwrap(),
        };
        let made = place.rvm(&[
            "create",
            "bank.log",
            "--log-size",
            "64KiB",
            "--segment",
            "bank.data",
            "--size",
            "1MiB",
        ]);
        assert_eq!(made.code, 0, "{}", made.err);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn rvm(&self, arguments: &[&str]) -> CommandOutput {
        finish(
            netram()
                .arg("rvm")
                .args(arguments)
                .current_dir(self.directory.path()),
        )
    }

    /// Runs a subcommand with --json, which must succeed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.rvm(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    pub fn open(&self) -> OpenFixture {
        self.open_with(&StoreSettings::default())
    }

    pub fn open_with(&self, settings: &StoreSettings) -> OpenFixture {
        let opened = Store::at(&self.path("bank.log")).open(settings).unwrap();
        let region = opened
            .memory
            .map(self.path("bank.data").to_str().unwrap(), 0, 0)
            .unwrap();
        OpenFixture(Some((opened, region)))
    }

    /// Commits `bytes` at each offset; they stay in the log, which is closed.
    pub fn commit(&self, changes: &[(usize, &[u8])]) {
        let open = self.open();
        for (offset, bytes) in changes {
            open.write(*offset, bytes, Durability::Disk);
        }
    }

    /// Contents of every file in the directory, except the lock file, which has the process id of the last
    /// user.
    pub fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
            .collect();
        files.sort();
        files
            .into_iter()
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    pub fn flip(&self, name: &str, offset: u64) {
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(self.path(name))
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    }
}

/// The log and its segment, open in this process.
pub struct OpenFixture(Option<(OpenStore, Region)>);

impl OpenFixture {
    pub fn opened(&self) -> &OpenStore {
        &self.0.as_ref().unwrap().0
    }

    pub fn region(&self) -> &Region {
        &self.0.as_ref().unwrap().1
    }

    /// Log and region, for tests that drop them separately while holding [`crate::forks`].
    pub fn take(mut self) -> (OpenStore, Region) {
        self.0.take().unwrap()
    }

    pub fn write(&self, offset: usize, bytes: &[u8], durability: Durability) {
        let mut transaction = self.opened().memory.begin(RestoreMode::Restore);
        transaction.write(self.region(), offset, bytes).unwrap();
        transaction.commit(durability).unwrap();
    }
}

impl Drop for OpenFixture {
    fn drop(&mut self) {
        let _alone = forks();
        self.0.take();
    }
}

pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}
