//! Nodes that are gone: lenders have the memory back that they had lent them, in the end, however a node has
//! ended.

use std::path::Path;
use std::time::Duration;

use crate::common::until;
use crate::common::world::{TestPaths, add, add_as};
use netram_lender::Lender;
use netram_shared::Node;
use netram_shared::limit::FORGET_TIMEOUT;
use netram_shared::server::RegionStore;

/// The longest life of a server that is to write down what it has told.
const LIVES_MAX: Duration = Duration::from_secs(1);

/// Bytes of one node's window.
const WINDOW: u64 = 1 << 20;

fn lent(lender: &Lender) -> u64 {
    lender.report().memory.used
}

/// Commits until the node's lender has it before its server: then there is a window, and the server knows of
/// it.
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

/// A server ends after a node is gone and before its members know.
#[test]
fn the_next_server_tells_the_members_of_a_node_that_they_may_forget_it() {
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
    // As the server does that has read it all, up to where it is killed.
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
        // One that ends at once may never come to it.
        std::thread::sleep(lives);
        lives = (lives * 2).min(LIVES_MAX);
        drop(serving);
        let (store, _) = RegionStore::open(&place.region(), || ()).unwrap();
        told && store.table().retired.is_empty()
    });
    // Its place is another's now, and so is its lender.
    let _serving = place.serve();
    let next = place.join("two");
    assert_eq!(add(&next, 1, 1).unwrap(), 2);
    next.leave().expect("it leaves");
}

/// Nobody told its lenders: they had been sealed by the process that offered the journal, which was to do it,
/// and did not.
#[test]
fn what_a_fenced_node_had_is_given_back_where_its_journal_was_offered() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let node = place.join("one");
    commit_to_lender(&node);
    // What a lender drops later is missing in a copy that was made before.
    until("both disks have all of it, and the lender holds nothing", || {
        let mut journals = lender.report().journals.into_iter();
        journals.all(|journal| journal.used_bytes == 0)
    });
    // Of a machine that was copied, and whose first one goes on: only a process that has the journal ends a
    // node whose lease runs.
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

/// It heard that it had left before it heard that its last record was kept, and took its window to be needed.
#[test]
fn whoever_leaves_right_behind_a_commit_gives_its_window_back() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    for round in 0..8 {
        let node = place.join("one");
        // Now its window is there, now it is on its way.
        match round % 2 == 0 {
            true => commit_to_lender(&node),
            false => drop(add(&node, 1, 1).expect("it commits")),
        }
        add(&node, 2, 1).expect("it commits");
        node.leave().expect("it leaves");
    }
    until("the lender has its memory back", || lent(&lender) == 0);
}

/// It was told for ten seconds, and then never again: not when it came back, with all that it had lent.
#[test]
fn a_lender_that_was_away_gives_back_what_it_has_when_it_comes_back() {
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
    // The first attempts are in vain. Were they not, the test would show less, and not fail.
    std::thread::sleep(FORGET_TIMEOUT + Duration::from_secs(1));
    let lender = place.lender("a");
    until("the lender has its memory back", || lent(&lender) == 0);
}

/// Each joining makes a journal. A lender remembered every one that it had ever served, and refused the next
/// when it could remember no more.
#[test]
fn nodes_come_and_go_any_number_of_times_though_lenders_remember_few_journals() {
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
            // The next process finds no empty slot.
            drop(lender);
            lender = place.lender_as("a", few);
        }
    }
}
