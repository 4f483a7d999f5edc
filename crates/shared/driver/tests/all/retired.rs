//! Gone nodes: lenders get the memory of their windows back, however a node has ended.

use std::path::Path;
use std::time::Duration;

use crate::common::until;
use crate::common::world::{TestPaths, add, add_as};
use netram_lender::Lender;
use netram_shared::Node;
use netram_shared::limit::FORGET_TIMEOUT;
use netram_shared::server::RegionStore;

/// Longest run of a server that has to record that the lenders were told.
const LIVES_MAX: Duration = Duration::from_secs(1);

/// Bytes of one node's window.
const WINDOW: u64 = 1 << 20;

fn lent(lender: &Lender) -> u64 {
    lender.report().memory.used
}

/// Commits until the node's lender has a record before its server: then the node has a window that the server
/// knows of.
fn commit_to_lender(node: &Node) {
    until("its lender has a vote", || {
        add_as(node, 1, 1).expect("it commits").1.votes.rule
    });
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// The server ends after a node is gone and before its members know.
#[test]
fn a_restarted_server_tells_a_gone_nodes_members_to_forget_it() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve();
    let node = place.join("one");
    let id = node.id();
    add(&node, 1, 1).unwrap();
    let report = |serving: &netram_shared::server::ServingRegion| serving.report().expect("it answers");
    until("the server knows the node's lender, durably", || {
        let nodes = report(&serving).nodes;
        nodes
            .iter()
            .any(|node| node.node == id.0 && node.lenders.len() == 1)
    });
    drop(serving);
    drop(node);
    assert!(lender.report().memory.used > 0, "it lends the node a window");
    // Like a server that has read the whole journal, and is killed then.
    let (mut store, _) = RegionStore::open(&place.region(), || ()).unwrap();
    store.fence(id).unwrap();
    let end = store.retire_pending_forget(id).unwrap();
    store.wait(end).unwrap();
    store.close().unwrap();
    let (store, _) = RegionStore::open(&place.region(), || ()).unwrap();
    let table = store.table();
    assert_eq!(
        (table.nodes.len(), table.retired.len(), table.gone.len()),
        (0, 1, 1)
    );
    assert_eq!(table.retired[0].view.members.len(), 1);
    assert_eq!(table.faults(), []);
    store.close().unwrap();
    let serving = place.serve();
    until("the lender has its memory back", || {
        lender.report().memory.used == 0
    });
    assert_eq!(report(&serving).nodes, []);
    drop(serving);
    let mut lives = Duration::from_millis(1);
    until("that is written down", || {
        let serving = place.serve();
        let told = report(&serving).nodes.is_empty();
        // A server that ends at once may not get to it.
        std::thread::sleep(lives);
        lives = (lives * 2).min(LIVES_MAX);
        drop(serving);
        let (store, _) = RegionStore::open(&place.region(), || ()).unwrap();
        told && store.table().retired.is_empty()
    });
    // Another node gets the table entry and the lender.
    let _serving = place.serve();
    let next = place.join("two");
    assert_eq!(add(&next, 1, 1).unwrap(), 2);
    next.leave().expect("it leaves");
}

/// The lenders were never told. The process that offered the journal had fenced them, and was expected to
/// tell them.
#[test]
fn a_fenced_nodes_windows_are_freed_after_its_journal_was_offered() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let node = place.join("one");
    commit_to_lender(&node);
    // A copy made earlier would lack what a lender drops later.
    until("both disks have all of it, and the lender holds nothing", || {
        let mut journals = lender.report().journals.into_iter();
        journals.all(|journal| journal.used_bytes == 0)
    });
    // A copied machine whose original goes on: only a process with the journal ends a node whose lease runs.
    copy(&place.directory.join("one"), &place.directory.join("two"));
    let other = place.join("two");
    until("the server has taken what was left", || {
        other.orphans().is_empty()
    });
    until("the node hears of it", || node.gone().is_some());
    commit_to_lender(&other);
    until("only the other has a window", || lent(&lender) == WINDOW);
    drop(node);
    other.leave().expect("it leaves");
    until("the lender has its memory back", || lent(&lender) == 0);
}

/// The node learned that it had left before it learned that its last record was durable. So it believed that
/// its window was needed.
#[test]
fn a_node_that_leaves_right_after_a_commit_frees_its_window() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    for round in 0..8 {
        let node = place.join("one");
        // In some rounds the window exists, in others it is being opened.
        match round % 2 == 0 {
            true => commit_to_lender(&node),
            false => drop(add(&node, 1, 1).expect("it commits")),
        }
        add(&node, 2, 1).expect("it commits");
        node.leave().expect("it leaves");
    }
    until("the lender has its memory back", || lent(&lender) == 0);
}

/// The lender was told for ten seconds, and never again, even when it came back with its windows.
#[test]
fn a_lender_that_returns_frees_the_windows_of_gone_nodes() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve_as(|config| config.forget_retry = Duration::from_millis(100));
    let node = place.join("one");
    commit_to_lender(&node);
    drop(lender);
    node.leave().expect("the server has all of it");
    // The first attempts fail. If they did not, the test would show less, and still pass.
    std::thread::sleep(FORGET_TIMEOUT + Duration::from_secs(1));
    let lender = place.lender("a");
    until("the lender has its memory back", || lent(&lender) == 0);
}

/// Each join makes a journal. A lender remembered every journal that it had served, and refused the next one
/// when its table was full.
#[test]
fn nodes_can_join_and_leave_more_often_than_lenders_remember_journals() {
    const JOURNALS: u32 = 3;
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let few = |config: &mut netram_lender::LenderConfig| config.journals_max = JOURNALS;
    let mut lender = place.lender_as("a", few);
    place.create(4, &["a"]);
    let _serving = place.serve();
    for round in 0..4 * JOURNALS {
        let node = place.join("one");
        commit_to_lender(&node);
        match round % 3 {
            0 => drop(node),
            _ => node.leave().expect("it leaves"),
        }
        until("the lender knows that its journal is over", || {
            lender.report().journals.is_empty()
        });
        if round == 2 * JOURNALS {
            // The lender's next process finds no free slot.
            drop(lender);
            lender = place.lender_as("a", few);
        }
    }
}
