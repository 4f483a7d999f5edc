//! Nodes whose stores are captured, not declared, with pages under several locks that several nodes hold.
//! Copies do not diverge, and a store without its lock is refused and reported.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::common::world::TestPaths;
use crate::common::{PATIENCE, TestRng, skipped, until};
use netram_proto::port::Durability;
use netram_rvm::{CaptureError, CaptureMode, DetectMethod, RestoreMode, VerifyMode};
use netram_shared::node::{AcquireError, JoinError, StrayStores, TxnCommitError};
use netram_shared::server::Spans;
use netram_shared::{Node, NodeOptions, Txn};
use netram_shared_machine::{LockId, LockMode};

/// Bytes under a lock: a page contains parts of up to five spans.
const SPAN: usize = 1032;
const LOCKS: usize = 24;

fn place(span: u64) -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    place.create_with(1, &["a"], |plan| {
        plan.bytes = (span * LOCKS as u64).next_multiple_of(4096);
        plan.spans = Spans::even(plan.bytes, span).expect("spans");
    });
    (directory, place)
}

/// Joins with this capture mode; `None`: the machine cannot capture so, which is reported.
fn join(place: &TestPaths, name: &str, capture: CaptureMode) -> Option<Node> {
    let options = NodeOptions {
        capture,
        ..place.options(name)
    };
    match Node::join(options) {
        Ok(node) => Some(node),
        Err(JoinError::Capture(refused @ CaptureError::NoWatch { .. })) => {
            skipped(refused);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const BY_PAGE: [CaptureMode; 4] = [
    CaptureMode::Twins(DetectMethod::Trap),
    CaptureMode::Pages(DetectMethod::Trap),
    CaptureMode::Twins(DetectMethod::Watch),
    CaptureMode::Pages(DetectMethod::Watch),
];

/// Stores as this capture allows: past the library where pages are watched.
fn store(txn: &mut Txn<'_>, node: &Node, capture: CaptureMode, at: usize, bytes: &[u8]) {
    match capture {
        CaptureMode::Twins(_) | CaptureMode::Pages(_) => node.region().put_back(at, bytes).expect("inside"),
        _ => txn.write(at, bytes).expect("it is held"),
    }
}

/// Adds to counters under random locks, and stores random bytes after them. Returns the total added.
fn work(node: &Node, capture: CaptureMode, seed: u64) -> u64 {
    let mut random = TestRng(seed);
    let mut added = 0;
    for _ in 0..60 {
        let locks: Vec<u32> = (0..1 + random.below(3))
            .map(|_| random.below(LOCKS as u64) as u32)
            .collect();
        let mut txn = node.begin(RestoreMode::Restore).expect("there is a node");
        let held: Vec<_> = locks
            .iter()
            .map(|lock| (LockId(*lock), LockMode::Exclusive))
            .collect();
        txn.acquire_all(&held).expect("they are free some day");
        for lock in &locks {
            let start = *lock as usize * SPAN;
            let counter: u64 = node.region().get(start).expect("inside");
            store(&mut txn, node, capture, start, &(counter + 1).to_le_bytes());
            let at = 8 + random.below(SPAN as u64 - 8) as usize;
            let bytes = vec![random.below(4) as u8; (SPAN - at).min(1 + random.below(300) as usize)];
            store(&mut txn, node, capture, start + at, &bytes);
        }
        if random.below(5) == 0 {
            txn.abort();
            continue;
        }
        txn.commit(Durability::Remote).expect("it commits");
        added += locks.len() as u64;
    }
    added
}

fn bytes(node: &Node) -> Vec<u8> {
    let mut bytes = vec![0; node.region().len()];
    node.region().read_into(0, &mut bytes).expect("inside");
    bytes
}

#[test]
fn nodes_that_share_pages_under_several_locks_end_with_the_same_bytes() {
    let ways = [
        (CaptureMode::Declared, CaptureMode::Twins(DetectMethod::Trap)),
        (
            CaptureMode::Pages(DetectMethod::Trap),
            CaptureMode::Pages(DetectMethod::Watch),
        ),
        (
            CaptureMode::Twins(DetectMethod::Watch),
            CaptureMode::Twins(DetectMethod::Trap),
        ),
        (CaptureMode::Adaptive, CaptureMode::Pages(DetectMethod::Trap)),
        (CaptureMode::Adaptive, CaptureMode::Verified(VerifyMode::Refuse)),
    ];
    for (index, (one_way, other_way)) in ways.into_iter().enumerate() {
        let (_directory, place) = place(SPAN as u64);
        let _lender = place.lender("a");
        let _serving = place.serve();
        let (Some(one), Some(other)) = (join(&place, "one", one_way), join(&place, "other", other_way))
        else {
            continue;
        };
        let seed = index as u64 * 10 + 1;
        let added: u64 = std::thread::scope(|scope| {
            // Two threads of one node: with capture by page, one waits for the other.
            let works = [
                scope.spawn(|| work(&one, one_way, seed)),
                scope.spawn(|| work(&one, one_way, seed + 1)),
                scope.spawn(|| work(&other, other_way, seed + 2)),
            ];
            works.map(|work| work.join().expect("no panic")).iter().sum()
        });
        until("both have the same bytes", || bytes(&one) == bytes(&other));
        // A node that joins now gets the server's bytes.
        let third = place.join("third");
        assert!(bytes(&third) == bytes(&one), "{one_way:?}, {other_way:?}");
        let counters = (0..LOCKS).map(|lock| third.region().get::<u64>(lock * SPAN).expect("inside"));
        assert_eq!(counters.sum::<u64>(), added, "{one_way:?}, {other_way:?}");
        for node in [one, other, third] {
            node.leave().expect("it leaves");
        }
    }
}

fn stray(refused: Result<netram_shared::node::TxnCommit, TxnCommitError>) -> StrayStores {
    match refused {
        Err(TxnCommitError::Stray(stray)) => stray,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_store_without_its_lock_is_refused_by_address_and_undone() {
    for capture in BY_PAGE {
        for mode in [RestoreMode::Restore, RestoreMode::NoRestore] {
            let (_directory, place) = place(SPAN as u64);
            let _lender = place.lender("a");
            let _serving = place.serve();
            let Some(one) = join(&place, "one", capture) else {
                continue;
            };
            let other = place.join("other");
            let mut txn = one.begin(mode).expect("there is a node");
            txn.acquire(LockId(1), LockMode::Exclusive).expect("it is free");
            txn.acquire(LockId(2), LockMode::Shared).expect("it is free");
            one.region().put_back(SPAN + 100, &[1; 8]).expect("inside");
            one.region().put_back(2 * SPAN, &[2; 3]).expect("inside");
            let found = stray(txn.commit(Durability::Remote));
            let address = one.region().as_ptr().addr() + 2 * SPAN;
            let expected = StrayStores {
                offset: 2 * SPAN,
                address,
                length: 3,
                count: 1,
                lock: Some(LockId(2)),
                held: false,
            };
            assert_eq!(found, expected, "{capture:?}");
            assert!(found.to_string().contains(&format!("{address:#x}")), "{found}");
            assert_eq!(one.gone(), None, "twins undo it, whatever the mode");
            assert!(bytes(&one) == bytes(&other));
            // The node continues, and the same stores under the locks are committed.
            let mut txn = one.begin(mode).expect("there is a node");
            let both = [1, 2].map(|lock| (LockId(lock), LockMode::Exclusive));
            txn.acquire_all(&both).expect("they are free");
            one.region().put_back(2 * SPAN, &[2; 3]).expect("inside");
            let commit = txn.commit(Durability::Remote).expect("it commits");
            assert!(commit.record.is_some());
            until("it comes", || bytes(&one) == bytes(&other));
            assert_eq!(other.version(LockId(2)).0, 1);
            assert_eq!(other.version(LockId(1)).0, 0, "nothing was stored there");
            for node in [one, other] {
                node.leave().expect("it leaves");
            }
        }
    }
}

#[test]
fn an_abort_without_undo_invalidates_the_copy_only_after_a_store() {
    // A span is a page: no twin is made, and an abort finds no store to undo.
    let (_directory, place) = place(4096);
    let _lender = place.lender("a");
    let _serving = place.serve();
    let one = join(&place, "one", CaptureMode::Pages(DetectMethod::Trap)).expect("every system can");
    let other = place.join("other");
    let begin = || {
        let mut txn = one.begin(RestoreMode::NoRestore).expect("there is a node");
        txn.acquire(LockId(1), LockMode::Exclusive).expect("it is free");
        txn
    };
    begin().abort();
    let txn = begin();
    one.region().put_back(4096 + 7, &[1]).expect("inside");
    txn.commit(Durability::Remote).expect("it commits");
    until("it comes", || bytes(&one) == bytes(&other));
    assert_eq!(one.gone(), None);
    let txn = begin();
    one.region().put_back(5 * 4096 + 7, &[1]).expect("inside");
    let found = stray(txn.commit(Durability::Remote));
    assert_eq!((found.offset, found.lock), (5 * 4096, Some(LockId(5))));
    assert_eq!(one.gone(), Some(netram_shared::node::NodeGone::CopyInvalid));
    assert_eq!(other.region().get::<u8>(5 * 4096 + 7).expect("inside"), 0);
}

#[test]
fn one_transaction_at_a_time_stores_under_capture_by_page() {
    let (_directory, place) = place(SPAN as u64);
    let _lender = place.lender("a");
    let _serving = place.serve();
    let node = join(&place, "one", CaptureMode::Twins(DetectMethod::Trap)).expect("every system can");
    let mut first = node.begin(RestoreMode::Restore).expect("there is a node");
    first.acquire(LockId(1), LockMode::Exclusive).expect("it is free");
    let mut second = node.begin(RestoreMode::Restore).expect("there is a node");
    second.set_timeout(Duration::from_millis(20));
    let refused = second.acquire(LockId(5), LockMode::Exclusive);
    assert!(matches!(refused, Err(AcquireError::Captured)), "{refused:?}");
    // Any number of readers is allowed.
    second.acquire(LockId(5), LockMode::Shared).expect("it is free");
    second.set_timeout(PATIENCE);
    let refused = second.acquire(LockId(6), LockMode::Exclusive);
    assert!(
        matches!(refused, Err(AcquireError::Captured)),
        "who has locks does not wait"
    );
    drop(second);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut third = node.begin(RestoreMode::Restore).expect("there is a node");
            third.acquire(LockId(5), LockMode::Exclusive)
        });
        first.commit(Durability::Remote).expect("it commits");
        waits.join().expect("no panic").expect("the first has ended");
    });
    node.leave().expect("it leaves");
}

/// Stores like a program that declares nothing: past this library, through the system.
fn store_past(node: &Node, at: usize, bytes: &[u8]) {
    let memory = std::fs::File::options()
        .write(true)
        .open("/proc/self/mem")
        .expect("Linux has it");
    let address = node.region().as_ptr().addr() + at;
    memory.write_all_at(bytes, address as u64).expect("it is mapped");
}

#[test]
fn an_undeclared_store_under_verification_is_refused_and_undone() {
    let (_directory, place) = place(SPAN as u64);
    let _lender = place.lender("a");
    let _serving = place.serve();
    // Protection does not detect stores that the system makes for the program, like these.
    let Some(probe) = join(&place, "probe", CaptureMode::Twins(DetectMethod::Watch)) else {
        return;
    };
    probe.leave().expect("it leaves");
    let one = join(&place, "one", CaptureMode::Verified(VerifyMode::Refuse)).expect("every system can");
    let other = place.join("other");
    for (at, lock, held) in [(SPAN + 50, 1, true), (3 * SPAN, 3, false)] {
        let before = bytes(&one);
        let mut txn = one.begin(RestoreMode::Restore).expect("there is a node");
        txn.acquire(LockId(1), LockMode::Exclusive).expect("it is free");
        txn.write(SPAN, &[7; 8]).expect("it is held");
        store_past(&one, at, &[9; 4]);
        let found = stray(txn.commit(Durability::Remote));
        let address = one.region().as_ptr().addr() + at;
        assert_eq!((found.offset, found.address, found.length), (at, address, 4));
        assert_eq!((found.lock, found.held), (Some(LockId(lock)), held), "{found}");
        assert!(bytes(&one) == before);
    }
    // Also in a transaction that only reads, or is aborted.
    let txn = one.begin(RestoreMode::Restore).expect("there is a node");
    store_past(&one, 0, &[9; 4]);
    assert_eq!(stray(txn.commit(Durability::Remote)).offset, 0);
    let txn = one.begin(RestoreMode::Restore).expect("there is a node");
    store_past(&one, 0, &[9; 4]);
    txn.abort();
    assert!(bytes(&one) == bytes(&other));
    let mut txn = one.begin(RestoreMode::Restore).expect("there is a node");
    txn.acquire(LockId(1), LockMode::Exclusive).expect("it is free");
    txn.set_range(SPAN, 4).expect("it is held");
    store_past(&one, SPAN, &[5; 4]);
    txn.commit(Durability::Remote).expect("it was declared");
    until("it comes", || bytes(&one) == bytes(&other));
    for node in [one, other] {
        node.leave().expect("it leaves");
    }
}
