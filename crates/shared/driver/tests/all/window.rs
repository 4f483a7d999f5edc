//! A server is restarted with a smaller window while nodes have records that it could not take.

use crate::common::processes::{self, NodeProcess, place_of_child};
use crate::common::until;
use crate::common::world::{LEASE_LONG, SPAN, TestPaths, add, read};
use netram_proto::port::{CommitVotes, Durability};
use netram_rvm::RestoreMode;
use netram_shared::server::RecordLimitError;
use netram_shared::server::serve::{RegionServeError, ServeConfig, ServingRegion};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode, RecordNumber};
use netram_transport::Security;

const LOCKS: usize = 256;

/// Not a test of its own: a server.
#[test]
#[ignore = "a process of the other test"]
fn server() {
    let Some(place) = place_of_child() else { return };
    processes::serve(place.serve());
}

/// Fills all spans: a record of a megabyte.
fn fill(node: &Node, byte: u8) -> (RecordNumber, CommitVotes) {
    let mut txn = node.begin(RestoreMode::Restore).unwrap();
    let locks: Vec<_> = (0..LOCKS as u32)
        .map(|lock| (LockId(lock), LockMode::Exclusive))
        .collect();
    txn.acquire_all(&locks).unwrap();
    txn.write(0, &vec![byte; LOCKS * SPAN]).unwrap();
    let commit = txn.commit(Durability::Remote).unwrap();
    (commit.record.expect("it wrote").1, commit.votes)
}

fn set_window(place: &TestPaths, window: &str) {
    std::fs::write(
        place.region().join("netram.toml"),
        format!("[journal]\nwindow = \"{window}\"\n"),
    )
    .unwrap();
}

fn serve(place: &TestPaths) -> Result<ServingRegion, RegionServeError> {
    let config = ServeConfig {
        lease: LEASE_LONG,
        ..ServeConfig::new(vec![place.address("server")], Security::Insecure)
    };
    ServingRegion::start(&place.region(), config)
}

/// An acknowledged commit would have been refused there, its node fenced, and the record left out of the
/// recovered journal.
#[test]
fn a_smaller_window_is_refused_while_nodes_may_have_longer_records() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create_with(LOCKS, &["a"], |plan| plan.log_bytes = 16 << 20);
    set_window(&place, "8MiB");
    let first = NodeProcess::serve(&place, "window::server", "server");
    let node = Node::join(NodeOptions {
        journal: Some(netram_journal::JournalConfig {
            window_bytes: 8 << 20,
            ..place.journal(&["a"])
        }),
        log_bytes: 32 << 20,
        ..place.options("one")
    })
    .expect("it joins");
    let mut last = RecordNumber(0);
    until("its lender has a vote", || {
        let (number, votes) = fill(&node, 1);
        last = number;
        votes.rule
    });
    until("the server has it", || node.progress().durable == last);
    // The node continues under its held tokens.
    first.kill();
    let last = fill(&node, 2).0;
    assert!(node.progress().durable < last);
    set_window(&place, "1MiB");
    match serve(&place) {
        Err(RegionServeError::RecordLimit(RecordLimitError::Less { told, takes })) => {
            assert!(takes < 1 << 20 && told > 1 << 20, "{takes} of {told}");
        }
        other => panic!("{other:?}"),
    }
    set_window(&place, "8MiB");
    let serving = serve(&place).expect("it is served");
    until("it goes on", || node.progress().durable == last);
    let other = place.join("other");
    assert_eq!(read(&other, 255).to_le_bytes(), [2; 8]);
    assert_eq!(node.gone(), None);
    node.leave().expect("it leaves");
    other.leave().expect("it leaves");
    // No node has a longer record any more.
    drop(serving);
    set_window(&place, "1MiB");
    let _serving = serve(&place).expect("it is served");
    let last = place.join("last");
    let two = u64::from_le_bytes([2; 8]);
    assert_eq!(add(&last, 3, 1).unwrap(), two + 1);
}
