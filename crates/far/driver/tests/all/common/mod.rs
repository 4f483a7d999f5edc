//! Lenders of a test, and waiting for a condition.

pub(crate) mod content;

use std::time::{Duration, Instant};

use netram_lender::Lender;
use netram_transport::NetAddress;
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn lender(dir: &TempDir, index: usize, memory: u64) -> Lender {
    Lender::start(lender_config(dir, index, memory)).unwrap()
}

pub(crate) fn lender_config(dir: &TempDir, index: usize, memory: u64) -> netram_lender::LenderConfig {
    netram_lender::LenderConfig {
        name: format!("lender-{index}"),
        listen: vec![address(dir, index)],
        memory,
        deposits: Some(memory),
        chunk_bytes: 16 * 1024,
        journals_max: 4,
        store: Some(dir.path().join(format!("store-{index}"))),
        ..netram_lender::LenderConfig::default()
    }
}

pub(crate) fn address(dir: &TempDir, index: usize) -> NetAddress {
    NetAddress::Unix(dir.path().join(format!("socket-{index}")))
}

pub(crate) fn dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("netram-test-")
        .tempdir_in("/dev/shm")
        .unwrap()
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
