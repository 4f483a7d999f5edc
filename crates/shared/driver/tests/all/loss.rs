//! A node dies, and its only lender is gone for good. Its locks stay taken until the operator accepts the
//! loss.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::world::{TestPaths, add};
use crate::common::{KilledChild, until};
use netram_rvm::RestoreMode;
use netram_shared::server::RegionStore;
use netram_shared::server::serve::control;
use netram_shared_machine::{LockId, LockMode, NodeId};

const PLACE: &str = "NETRAM_TEST_PLACE";

/// Not a test of its own: a node that keeps its locks.
#[test]
#[ignore = "the process that the other test kills"]
fn node() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let node = TestPaths { directory }.join("one");
    for value in 1..=5 {
        assert_eq!(add(&node, 1, 1).unwrap(), value);
    }
    assert_eq!(add(&node, 2, 7).unwrap(), 7);
    writeln!(std::io::stdout(), "\nhas it").unwrap();
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn a_loss_with_the_only_lender_is_accepted_by_the_operator_and_recorded() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve_with(Duration::from_secs(60));
    let other = place.join("other");
    let mut child = KilledChild(
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "loss::node", "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
    assert!(
        said.any(|line| line.is_ok_and(|line| line == "has it")),
        "the node ended before it had the lock"
    );
    let report = |name: &str| {
        let report = serving.report().expect("it answers");
        report.nodes.into_iter().find(|node| node.name == name)
    };
    until("the server knows the node's lender", || {
        report("one").is_some_and(|node| !node.lenders.is_empty())
    });
    let id = NodeId(report("one").unwrap().node);
    // Both at once, so that the node does not learn that its lender is gone.
    child.freeze();
    lender.stop_and_forget(Duration::ZERO);
    drop(lender);
    drop(child);
    let mut stuck = None;
    until("it is stuck", || {
        stuck = report("one").and_then(|node| node.stuck);
        stuck.is_some()
    });
    let stuck = stuck.unwrap();
    assert!(stuck.lenders[0].contains("a.sock"), "{stuck:?}");
    // Until the operator decides, the lock is not granted.
    let mut txn = other.begin(RestoreMode::Restore).unwrap();
    txn.set_timeout(Duration::from_millis(300));
    assert!(txn.acquire(LockId(2), LockMode::Exclusive).is_err());
    drop(txn);
    let accepted = control::accept_loss(&place.region(), id).unwrap().unwrap();
    assert_eq!(accepted.lenders, stuck.lenders);
    until("it is gone", || report("one").is_none());
    // The records that had come over its link are there.
    assert_eq!(add(&other, 2, 1).unwrap(), 8);
    drop(other);
    drop(serving);
    let (store, _) = RegionStore::open(&place.region(), || ()).unwrap();
    let gone = store.table().gone.iter().find(|gone| gone.id == id).unwrap();
    assert!(gone.loss_accepted, "{gone:?}");
}
