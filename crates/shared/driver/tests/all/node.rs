//! Nodes of a region in one process, with a real server, lenders and files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::world::{LEASE_SHORT, SPAN, TestPaths, add, read, transfer};
use crate::common::{PATIENCE, TestRng, until};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared::node::{AcquireError, DeclareError, NodeGone, ReadError, TxnCommitError};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{LockId, LockMode, LockVersion, RecordNumber};
use netram_telemetry::MetricsRegistry;

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

/// Waits until both nodes have the same bytes.
fn equal(one: &Node, other: &Node) {
    until("both nodes have the same bytes", || {
        let mut bytes = vec![0; one.region().len()];
        one.region().read_into(0, &mut bytes).expect("inside");
        *other.region().read() == bytes[..]
    });
}

#[test]
fn a_commit_of_one_node_is_visible_to_another_under_the_lock() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let one = place.join("one");
    assert_eq!(add(&one, 2, 40).unwrap(), 40);
    // The other node joins later, and has the commit in its pages.
    let other = place.join("other");
    assert_ne!(one.id(), other.id());
    assert_eq!(other.region().get::<u64>(2 * SPAN).unwrap(), 40);
    assert_eq!(add(&other, 2, 2).unwrap(), 42);
    assert_eq!(read(&one, 2), 42);
    assert_eq!(add(&one, 1, 7).unwrap(), 7);
    equal(&one, &other);
    one.leave().expect("it leaves");
    assert_eq!(add(&other, 2, 1).unwrap(), 43);
    other.leave().expect("it leaves");
    for name in ["one", "other"] {
        let files = std::fs::read_dir(place.directory.join(name)).unwrap();
        assert_eq!(files.count(), 0, "nothing is left of a node that left");
    }
}

#[test]
fn many_threads_of_three_nodes_lose_no_money() {
    const LOCKS: u64 = 6;
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(LOCKS as usize, &["a"]);
    let _serving = place.serve();
    let nodes = ["one", "two", "three"].map(|name| place.join(name));
    for lock in 0..LOCKS as u32 {
        add(&nodes[0], lock, 1000).unwrap();
    }
    std::thread::scope(|scope| {
        for (index, node) in nodes.iter().chain(nodes.iter()).enumerate() {
            scope.spawn(move || {
                let mut random = TestRng(index as u64 + 1);
                for _ in 0..100 {
                    let from = random.below(LOCKS) as u32;
                    let to = (from + 1 + random.below(LOCKS - 1) as u32) % LOCKS as u32;
                    transfer(node, from, to, random.below(50));
                }
            });
        }
    });
    let sum = |node: &Node| {
        let balances = (0..LOCKS as u32).map(|lock| read(node, lock));
        balances.fold(0_u64, u64::wrapping_add)
    };
    for node in &nodes {
        assert_eq!(sum(node), LOCKS * 1000);
        equal(&nodes[0], node);
    }
    for node in nodes {
        node.leave().expect("it leaves");
    }
}

#[test]
fn bytes_are_writable_only_under_their_lock() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let node = place.join("one");
    let mut txn = node.begin(RestoreMode::Restore).unwrap();
    txn.acquire(LockId(1), LockMode::Exclusive).unwrap();
    txn.acquire(LockId(2), LockMode::Shared).unwrap();
    let refused = txn.write(2 * SPAN - 4, &[1; 8]).unwrap_err();
    let not_held =
        matches!(refused, DeclareError::NotHeld { offset, lock: LockId(2), .. } if offset == 2 * SPAN);
    assert!(not_held, "{refused}");
    let mut held = node.region().exclusive();
    let refused = txn.write_in(&mut held, 2 * SPAN - 4, &[1; 8]).unwrap_err();
    assert!(
        matches!(refused, DeclareError::NotHeld { lock: LockId(2), .. }),
        "{refused}"
    );
    txn.write_in(&mut held, 2 * SPAN - 4, &[0; 4]).unwrap();
    drop(held);
    assert!(matches!(txn.set_range(4 * SPAN, 1), Err(DeclareError::Range(_))));
    // Reads can be checked as well.
    assert_eq!(txn.get::<u64>(2 * SPAN - 4), Ok(0));
    let unread = txn.get::<u64>(3 * SPAN - 4).unwrap_err();
    let not_held = matches!(unread, ReadError::NotHeld { offset, lock: LockId(3), .. } if offset == 3 * SPAN);
    assert!(not_held, "{unread}");
    assert!(matches!(
        txn.read(4 * SPAN - 1, &mut [0; 2]),
        Err(ReadError::Range(_))
    ));
    // The shared lock is upgraded; then both spans are one range.
    txn.acquire(LockId(2), LockMode::Exclusive).unwrap();
    txn.write(2 * SPAN - 4, &[1; 8]).unwrap();
    assert!(matches!(
        txn.acquire(LockId(9), LockMode::Shared),
        Err(AcquireError::NoLock(_))
    ));
    drop(txn);
    assert_eq!(
        node.region().get::<u64>(2 * SPAN - 4).unwrap(),
        0,
        "an abort leaves no trace"
    );
    node.leave().expect("it leaves");
}

#[test]
fn an_abort_without_undo_ends_the_node_and_is_invisible_to_others() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    let mut txn = one.begin(RestoreMode::NoRestore).unwrap();
    txn.acquire(LockId(2), LockMode::Exclusive).unwrap();
    let refused = txn.acquire(LockId(1), LockMode::Exclusive);
    assert!(
        matches!(refused, Err(AcquireError::OutOfOrder(LockId(1)))),
        "{refused:?}"
    );
    txn.set(2 * SPAN, &7_u64).unwrap();
    txn.abort();
    assert_eq!(one.gone(), Some(NodeGone::CopyInvalid));
    assert_eq!(one.begin(RestoreMode::Restore).err(), Some(NodeGone::CopyInvalid));
    // The next process of its directory offers its journal, which proves its death and ends its hold of the
    // lock.
    drop(one);
    let _one = place.join("one");
    assert_eq!(add(&other, 2, 1).unwrap(), 1);
}

#[test]
fn waiting_for_a_lock_in_use_ends_at_the_timeout() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    let mut holds = one.begin(RestoreMode::Restore).unwrap();
    holds.acquire(LockId(1), LockMode::Exclusive).unwrap();
    let mut waits = other.begin(RestoreMode::Restore).unwrap();
    waits.set_timeout(Duration::from_millis(100));
    let refused = waits.acquire(LockId(1), LockMode::Shared);
    assert!(
        matches!(refused, Err(AcquireError::TimedOut(LockId(1)))),
        "{refused:?}"
    );
    waits.acquire(LockId(2), LockMode::Exclusive).unwrap();
    let died = waits.acquire(LockId(1), LockMode::Exclusive);
    assert!(matches!(died, Err(AcquireError::Died(LockId(1)))), "{died:?}");
    drop(holds);
    drop(waits);
    assert_eq!(add(&other, 1, 5).unwrap(), 5);
}

#[test]
fn a_pinned_reader_sees_old_data_until_it_accepts() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    add(&one, 1, 1).unwrap();
    assert_eq!(read(&other, 1), 1);
    let mut reader = other.reader().unwrap();
    add(&one, 1, 1).unwrap();
    until("the record has come", || reader.age().positions > 0);
    let at = SPAN..SPAN + 8;
    assert_eq!(reader.read().unwrap()[at.clone()], 1_u64.to_le_bytes());
    reader.accept().unwrap();
    assert_eq!(reader.read().unwrap()[at.clone()], 2_u64.to_le_bytes());
    drop(reader);
    add(&one, 1, 1).unwrap();
    until("it is applied at once", || {
        other.region().get::<u64>(SPAN).unwrap() == 3
    });
}

/// Bindings of other languages keep transactions in tables, and end them in any thread.
#[test]
fn owned_transactions_keep_their_node_and_may_change_threads() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let node = Arc::new(place.join("one"));
    let mut txn = node.begin_owned(RestoreMode::Restore).unwrap();
    let reader = node.reader_owned().unwrap();
    assert_eq!(reader.read().unwrap()[SPAN..SPAN + 8], [0; 8]);
    txn.acquire(LockId(1), LockMode::Exclusive).unwrap();
    txn.set(SPAN, &7_u64).unwrap();
    // A sole owner could leave, or drop the node.
    let node = Arc::try_unwrap(node).expect_err("both have a share");
    let commit = std::thread::spawn(move || txn.commit(Durability::Remote));
    commit.join().expect("no panic").expect("it commits");
    drop(reader);
    let node = Arc::into_inner(node).expect("nobody else has it");
    assert_eq!(read(&node, 1), 7);
    node.leave().expect("it leaves");
}

#[test]
fn without_lenders_commits_wait_for_the_servers_disk() {
    let (_directory, place) = place();
    place.create(4, &[]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    for _ in 0..20 {
        add(&one, 1, 1).unwrap();
    }
    assert_eq!(read(&other, 1), 20);
    one.leave().expect("it leaves");
    other.leave().expect("it leaves");
}

#[test]
fn a_repeatedly_full_log_and_window_block_no_commit_for_good() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(64, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    // 16 MB through a window of 1 MiB and a log of 4 MiB.
    for round in 0..64_u8 {
        let mut txn = one.begin(RestoreMode::Restore).unwrap();
        let locks: Vec<_> = (0..64).map(|lock| (LockId(lock), LockMode::Exclusive)).collect();
        txn.acquire_all(&locks).unwrap();
        txn.write(0, &vec![round; 64 * SPAN]).unwrap();
        txn.commit(Durability::Remote).unwrap();
    }
    assert_eq!(read(&other, 63).to_le_bytes(), [63; 8]);
    equal(&one, &other);
    one.leave().expect("it leaves");
}

#[test]
fn a_dead_processs_journal_is_offered_by_the_next_and_removed() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let one = place.join("one");
    let id = one.id();
    for _ in 0..10 {
        add(&one, 1, 1).unwrap();
    }
    // Has the effect of a crash.
    drop(one);
    let one = place.join("one");
    until("what was left is offered", || one.orphans().is_empty());
    assert_eq!(read(&one, 1), 10);
    let fate = |number| one.outcome(id, RecordNumber(number), PATIENCE).unwrap();
    assert_eq!(
        (fate(10), fate(11)),
        (RecordOutcome::Committed, RecordOutcome::Aborted)
    );
    one.leave().expect("it leaves");
    let files = std::fs::read_dir(place.directory.join("one")).unwrap();
    assert_eq!(files.count(), 0);
}

#[test]
fn nodes_continue_after_a_server_restart() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    add(&one, 1, 1).unwrap();
    // The other node may not have received the record: the next server finds it in its log.
    drop(serving);
    let _serving = std::thread::scope(|scope| {
        // While its lease runs the node needs no server, since it has the token. After that it waits for one.
        scope.spawn(|| add(&one, 1, 1).unwrap());
        place.serve()
    });
    assert_eq!(add(&other, 1, 1).unwrap(), 3);
    assert_eq!(read(&one, 1), 3);
    equal(&one, &other);
}

#[test]
fn wait_version_waits_for_another_nodes_write_and_ignores_held_back_records() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    let lock = LockId(2);
    let soon = Duration::from_millis(20);
    assert_eq!(other.wait_version(lock, LockVersion(1), soon), Ok(false));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.wait_version(lock, LockVersion(1), PATIENCE));
        add(&one, 2, 5).unwrap();
        assert_eq!(waiting.join().unwrap(), Ok(true));
    });
    assert_eq!(other.region().get::<u64>(2 * SPAN).unwrap(), 5);
    let reader = other.reader().unwrap();
    add(&one, 2, 5).unwrap();
    until("the second write has come", || {
        other.version(lock) == LockVersion(2)
    });
    assert_eq!(other.wait_version(lock, LockVersion(1), soon), Ok(true));
    assert_eq!(other.wait_version(lock, LockVersion(2), soon), Ok(false));
    drop(reader);
    assert_eq!(other.wait_version(lock, LockVersion(2), PATIENCE), Ok(true));
    assert_eq!(other.region().get::<u64>(2 * SPAN).unwrap(), 10);
    // Its own writes are visible as soon as they are committed.
    add(&other, 3, 1).unwrap();
    assert_eq!(other.wait_version(LockId(3), LockVersion(1), soon), Ok(true));
}

/// Data read under a kept token is current only during the lease. This was checked for exclusive locks, and
/// not for shared ones.
#[test]
fn a_read_beyond_the_lease_does_not_commit() {
    for hold in [LockMode::Shared, LockMode::Exclusive] {
        let (_directory, place) = place();
        place.create(4, &[]);
        let serving = place.serve_with(LEASE_SHORT);
        let one = place.join("one");
        let mut reads = one.begin(RestoreMode::Restore).unwrap();
        reads.acquire(LockId(1), hold).unwrap();
        drop(serving);
        // No server renews the lease.
        std::thread::sleep(LEASE_SHORT);
        assert_eq!(reads.get::<u64>(SPAN), Ok(0));
        assert_eq!(reads.commit(Durability::Remote).err(), Some(TxnCommitError::Lost));
    }
}

/// A reader that was the last to have a node closed its journal, and waited for itself to remove the
/// journal's metrics.
#[test]
fn a_node_is_dropped_while_metrics_are_read() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let reads = Arc::new(AtomicU64::new(0));
    let reader = Arc::clone(&reads);
    // Not joined: a reader that waits for itself would keep the test.
    std::thread::spawn(move || {
        while Arc::strong_count(&reader) > 1 {
            drop(MetricsRegistry::of_process().read());
            reader.fetch_add(1, Ordering::Relaxed);
        }
    });
    for number in 0..40 {
        let node = place.join(&format!("node-{number}"));
        assert_eq!(add(&node, 2, 1).unwrap(), number + 1);
        drop(node);
        let before = reads.load(Ordering::Relaxed);
        until("metrics are read on", || {
            reads.load(Ordering::Relaxed) > before + 1
        });
    }
}
