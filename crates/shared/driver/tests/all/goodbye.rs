//! A node's process is killed on a running machine. The machine closes its link, so its locks are granted
//! long before its lease ends.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::world::{TestPaths, add, read};

const PLACE: &str = "NETRAM_TEST_PLACE";
/// Longer than any lock is waited for, and than the test may last.
const LEASE: Duration = Duration::from_secs(60);

/// Not a test of its own: a node that keeps a lock.
#[test]
#[ignore = "the process that the other test kills"]
fn node() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let place = TestPaths { directory };
    let node = place.join("one");
    assert_eq!(add(&node, 1, 1).unwrap(), 1);
    writeln!(std::io::stdout(), "\nhas it").unwrap();
    // If the process is not killed.
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn a_killed_processs_lock_is_granted_before_its_lease_ends() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve_with(LEASE);
    let other = place.join("other");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "goodbye::node", "--ignored", "--nocapture"])
        .env(PLACE, &place.directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(
        said.any(|line| line.is_ok_and(|line| line == "has it")),
        "the node ended before it had the lock"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    // The acquire waits for at most ten seconds.
    assert_eq!(add(&other, 1, 1).unwrap(), 2, "what it had committed is there");
    assert_eq!(read(&other, 1), 2);
    // The other node was not taken for dead.
    assert!(other.gone().is_none());
    other.leave().expect("it leaves");
    drop(serving);
}
