//! A `netram lender serve` process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::FaultsFixture;
use super::process::FaultsProcess;

/// A lender's process and the file that is its memory.
pub(crate) struct FaultsLender {
    pub(crate) address: String,
    pub(crate) log: PathBuf,
    store: PathBuf,
    command: Vec<String>,
    process: Option<FaultsProcess>,
}

impl FaultsLender {
    fn new(place: &FaultsFixture, name: &str, address: &str, wrap: &[&str], more: &[&str]) -> FaultsLender {
        let store = place.memory().join(format!("{name}.store"));
        let (key, store_path) = (place.key().display().to_string(), store.display().to_string());
        let fixed = [
            crate::common::program(),
            "lender",
            "serve",
            "--with-parent",
            "--listen",
            address,
            "--key-file",
            &key,
            "--store",
            &store_path,
            "--shards",
            "1",
            "--wait",
            "block",
        ];
        let mut command: Vec<String> = wrap
            .iter()
            .chain(&fixed)
            .chain(more)
            .map(|part| part.to_string())
            .collect();
        let usual = [
            ("--name", name),
            ("--domain", name),
            ("--memory", "16MiB"),
            ("--grace", "0s"),
        ];
        for (flag, value) in usual.iter().filter(|(flag, _)| !more.contains(flag)) {
            command.extend([flag.to_string(), value.to_string()]);
        }
        let log = place.memory().join(format!("{name}.log"));
        FaultsLender {
            address: address.to_owned(),
            log,
            store,
            command,
            process: None,
        }
    }

    /// Starts a lender that listens on `address`, by way of `wrap` (a command that runs the one behind it).
    pub(crate) fn start(
        place: &FaultsFixture,
        name: &str,
        address: &str,
        wrap: &[&str],
        more: &[&str],
    ) -> FaultsLender {
        let mut lender = FaultsLender::new(place, name, address, wrap, more);
        lender.restart();
        lender
    }

    /// The same; `None`: it ended before it served.
    pub(crate) fn try_start(
        place: &FaultsFixture,
        name: &str,
        address: &str,
        wrap: &[&str],
        more: &[&str],
    ) -> Option<FaultsLender> {
        let mut lender = FaultsLender::new(place, name, address, wrap, more);
        lender.serves().then_some(lender)
    }

    /// Starts the process (again); it takes up the memory that an earlier one left. Returns when it serves.
    pub(crate) fn restart(&mut self) {
        assert!(self.serves(), "the lender at {} did not start", self.address);
    }

    fn serves(&mut self) -> bool {
        self.process = None;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let mut process = FaultsProcess::start(&mut command, &self.log);
        let mut lines = BufReader::new(process.take_stdout()).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line == "ready"));
        self.process = Some(process);
        ready
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    /// Sends a signal and waits for the process's end. Returns its exit code.
    pub(crate) fn stop(&mut self, signal: Signal) -> i32 {
        self.signal(signal);
        let process = self.process.take();
        process.map_or(-1, |mut process| process.wait())
    }

    /// Ends the process and forgets the memory, as a machine does that loses its power.
    pub(crate) fn lose(&mut self) {
        self.kill();
        std::fs::remove_file(&self.store).expect("the memory was there");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("the lender runs").signal(signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.as_ref().expect("the lender runs").pid()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| !process.has_ended())
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn store(&self) -> &Path {
        &self.store
    }
}
