//! A server is started again with a smaller window, while nodes have records that it would not take.

use crate::common::processes::{self, Process, place_of_child};
use crate::common::until;
use crate::common::world::{LEASE_LONG, Place, SPAN, add, read};
use netram_proto::port::{Durability, Votes};
use netram_rvm::Mode;
use netram_shared::server::PromiseError;
use netram_shared::server::serve::{ServeConfig, ServeError, Serving};
use netram_shared::{Node, Options};
use netram_shared_machine::{Hold, LockId, Number};
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
fn fill(node: &Node, byte: u8) -> (Number, Votes) {
    let mut txn = node.begin(Mode::Restore).unwrap();
    let locks: Vec<_> = (0..LOCKS as u32)
        .map(|lock| (LockId(lock), Hold::Exclusive))
        .collect();
    txn.acquire_all(&locks).unwrap();
    txn.write(0, &vec![byte; LOCKS * SPAN]).unwrap();
    let commit = txn.commit(Durability::Remote).unwrap();
    (commit.record.expect("it wrote").1, commit.votes)
}

fn set_window(place: &Place, window: &str) {
    std::fs::write(
        place.region().join("netram.toml"),
        format!("window = \"{window}\"\n"),
    )
    .unwrap();
}

fn serve(place: &Place) -> Result<Serving, ServeError> {
    let config = ServeConfig {
        lease: LEASE_LONG,
        ..ServeConfig::new(vec![place.address("server")], Security::Insecure)
    };
    Serving::start(&place.region(), config)
}

/// A commit that members had acknowledged would have been refused there, its node fenced, and the record left out of what its journal has.
#[test]
fn a_smaller_window_is_refused_while_nodes_may_have_longer_records() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = Place {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create_with(LOCKS, &["a"], |plan| plan.log_bytes = 16 << 20);
    set_window(&place, "8MiB");
    let first = Process::serve(&place, "window::server", "server");
    let node = Node::join(Options {
        journal: Some(netram_journal::JournalConfig {
            window_bytes: 8 << 20,
            ..place.journal(&["a"])
        }),
        log_bytes: 32 << 20,
        ..place.options("one")
    })
    .expect("it joins");
    let mut last = Number(0);
    until("its lender has a vote", || {
        let (number, votes) = fill(&node, 1);
        last = number;
        votes.rule
    });
    until("the server has it", || node.progress().kept == last);
    // The node goes on under the tokens that it has.
    first.kill();
    let last = fill(&node, 2).0;
    assert!(node.progress().kept < last);
    set_window(&place, "1MiB");
    match serve(&place) {
        Err(ServeError::Promise(PromiseError::Less { told, takes })) => {
            assert!(takes < 1 << 20 && told > 1 << 20, "{takes} of {told}");
        }
        other => panic!("{other:?}"),
    }
    set_window(&place, "8MiB");
    let serving = serve(&place).expect("it is served");
    until("it goes on", || node.progress().kept == last);
    let other = place.join("other");
    assert_eq!(read(&other, 255).to_le_bytes(), [2; 8]);
    assert_eq!(node.gone(), None);
    node.leave().expect("it leaves");
    other.leave().expect("it leaves");
    // Nobody has anything any more that is longer.
    drop(serving);
    set_window(&place, "1MiB");
    let _serving = serve(&place).expect("it is served");
    let last = place.join("last");
    let two = u64::from_le_bytes([2; 8]);
    assert_eq!(add(&last, 3, 1).unwrap(), two + 1);
}
