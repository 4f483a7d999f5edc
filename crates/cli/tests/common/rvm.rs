//! Recoverable memory for tests of its tools.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use netram_home::{Home, Opened, Settings};
use netram_proto::port::Durability;
use netram_rvm::{Mode, Region};
use serde_json::Value;

use super::{Ran, netram, ran};

/// A log with one segment in a temporary folder.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn rvm(&self, arguments: &[&str]) -> Ran {
        let command = netram()
            .arg("rvm")
            .args(arguments)
            .current_dir(self.folder.path())
            .output();
        ran(command.expect("the program starts"))
    }

    /// Runs a subcommand that must go well, with --json.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.rvm(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    pub(crate) fn open(&self) -> (Opened, Region) {
        self.open_with(&Settings::default())
    }

    pub(crate) fn open_with(&self, settings: &Settings) -> (Opened, Region) {
        let opened = Home::at(&self.path("bank.log")).open(settings).unwrap();
        let region = opened
            .memory
            .map(self.path("bank.data").to_str().unwrap(), 0, 0)
            .unwrap();
        (opened, region)
    }

    /// Commits `bytes` at `offset`; they stay in the log, which is closed.
    pub(crate) fn commit(&self, changes: &[(usize, &[u8])]) {
        let (opened, region) = self.open();
        for (offset, bytes) in changes {
            write(&opened, &region, *offset, bytes, Durability::Disk);
        }
    }

    /// Every file of the folder with its contents, but for the lock: that has the number of whoever tried last.
    pub(crate) fn contents(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.folder.path())
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

    pub(crate) fn flip(&self, name: &str, offset: u64) {
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

pub(crate) fn write(opened: &Opened, region: &Region, offset: usize, bytes: &[u8], durability: Durability) {
    let mut transaction = opened.memory.begin(Mode::Restore);
    transaction.write(region, offset, bytes).unwrap();
    transaction.commit(durability).unwrap();
}

pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}
