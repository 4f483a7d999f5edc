//! Processes that a test kills: this binary, started again with the name of one test.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netram_lender::Lender;
use netram_transport::{NetAddress, Security, connect};
use tempfile::TempDir;

use super::{config_in, socket, until};

const DIR: &str = "NETRAM_TEST_CHILD_DIR";

/// The test's directory, in a process that is to be killed.
pub(crate) fn directory() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// Runs in the lender process that is killed; not a test by itself.
#[test]
fn lender_process() {
    if let Some(directory) = directory() {
        Lender::start(config_in(&directory)).unwrap().wait();
    }
}

/// A process of this binary, killed on drop.
pub(crate) struct TestChild(Child);

impl TestChild {
    /// Starts a process that runs one test.
    pub(crate) fn start(dir: &TempDir, test: &str) -> TestChild {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        TestChild(child)
    }

    /// Starts a lender, and waits until it listens.
    pub(crate) fn lender(dir: &TempDir) -> TestChild {
        let process = TestChild::start(dir, "common::child::lender_process");
        let address = NetAddress::Unix(socket(dir));
        until("the lender listens", || {
            connect(&address, &Security::Insecure, Duration::from_secs(1)).is_ok()
        });
        process
    }
}

impl Drop for TestChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
