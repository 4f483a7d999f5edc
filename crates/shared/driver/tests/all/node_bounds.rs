//! Behaviour at a node's bounds, with a real server, lenders and files.

use crate::common::world::{SPAN, TestPaths, add, read};
use crate::common::{PATIENCE, until};
use netram_journal::JournalConfig;
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, RvmCommitError as Uncommitted};
use netram_shared::node::{JoinError, NodeGone, TxnCommitError};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::{NodeEnd, PinnedOverflow};
use netram_shared_machine::{LockId, LockMode, LockVersion};

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

/// Fills this number of spans, from lock 0 on.
fn fill(node: &Node, spans: usize, byte: u8) -> Result<(), TxnCommitError> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    let locks: Vec<_> = (0..spans as u32)
        .map(|lock| (LockId(lock), LockMode::Exclusive))
        .collect();
    txn.acquire_all(&locks).expect("they are free some day");
    for span in 0..spans {
        txn.write(span * SPAN, &[byte; SPAN]).expect("it is held");
    }
    txn.commit(Durability::Remote).map(drop)
}

#[test]
fn a_directory_has_one_node_at_a_time() {
    let (_directory, place) = place();
    place.create(4, &[]);
    let _serving = place.serve();
    let one = place.join("one");
    let refused = Node::join(place.options("one")).err();
    assert!(
        matches!(&refused, Some(JoinError::InUse(path)) if *path == place.directory.join("one")),
        "{refused:?}"
    );
    // The attempt has done the other node no harm.
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    one.leave().expect("it leaves");
    place.join("one").leave().expect("it leaves");
}

/// Members would have acknowledged it, and no server could ever merge it.
#[test]
fn a_commit_too_long_for_the_server_is_refused_before_it_is_logged() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_with(1024, &["a"], |plan| plan.log_bytes = 1 << 20);
    let _serving = place.serve();
    let one = Node::join(NodeOptions {
        journal: Some(JournalConfig {
            window_bytes: 16 << 20,
            ..place.journal(&["a"])
        }),
        log_bytes: 32 << 20,
        ..place.options("one")
    })
    .expect("it joins");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    let refused = fill(&one, 256, 7);
    let too_large = matches!(
        refused,
        Err(TxnCommitError::Refused(Uncommitted::TooLarge { bytes, max })) if bytes > 1 << 20 && max < 1 << 19
    );
    assert!(too_large, "{refused:?}");
    assert_eq!(one.gone(), None);
    assert_eq!(
        one.region().get::<u64>(SPAN),
        Ok(1),
        "it is as if it had never been"
    );
    // The largest record that fits is merged.
    fill(&one, 100, 8).expect("it commits");
    let other = place.join("other");
    assert_eq!(read(&other, 99).to_le_bytes(), [8; 8]);
    one.leave().expect("it leaves");
}

#[test]
fn a_lazy_node_gets_records_when_it_asks_and_before_a_grant() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let one = place.join("one");
    let lazy = Node::join(NodeOptions {
        lazy: true,
        ..place.options("lazy")
    })
    .expect("it joins");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    // The server has the record, and answers the node.
    until("the record is durable", || {
        let fate = lazy.outcome(
            one.id(),
            netram_shared_machine::RecordNumber(1),
            std::time::Duration::from_secs(1),
        );
        fate == Ok(RecordOutcome::Committed)
    });
    assert_eq!(lazy.version(LockId(1)), LockVersion(0));
    assert_eq!(lazy.region().get::<u64>(SPAN), Ok(0));
    lazy.pull();
    until("what it asked for is there", || {
        lazy.region().get::<u64>(SPAN) == Ok(1)
    });
    assert_eq!(add(&one, 1, 1).unwrap(), 2);
    assert_eq!(read(&lazy, 1), 2);
    assert_eq!(add(&lazy, 1, 1).unwrap(), 3);
    assert_eq!(read(&one, 1), 3);
    lazy.leave().expect("it leaves");
}

/// A node with a bound of 64 KiB for its readers, and a node that commits.
fn bounded(place: &TestPaths, full: PinnedOverflow) -> (Node, Node) {
    let bounded = Node::join(NodeOptions {
        pinned_bytes_max: 64 << 10,
        full,
        ..place.options("bounded")
    });
    (bounded.expect("it joins"), place.join("writer"))
}

#[test]
fn pinned_readers_that_hold_back_too_much_expire_and_continue_with_new_data() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(16, &["a"]);
    let _serving = place.serve();
    let (node, writer) = bounded(&place, PinnedOverflow::Expire);
    fill(&writer, 8, 1).unwrap();
    assert_eq!(read(&node, 0).to_le_bytes(), [1; 8]);
    let mut reader = node.reader().unwrap();
    // Below the bound, the record waits.
    fill(&writer, 8, 2).unwrap();
    until("the record has come", || reader.age().positions > 0);
    assert_eq!(reader.read().unwrap()[..8 * SPAN], vec![1; 8 * SPAN]);
    // An existing guard stays valid as long as it is held.
    let guard = reader.read().unwrap();
    fill(&writer, 9, 3).unwrap();
    until("it is too much", || reader.is_expired());
    assert_eq!(guard[..8 * SPAN], vec![1; 8 * SPAN]);
    drop(guard);
    assert!(reader.read().is_err());
    reader.accept().unwrap();
    assert_eq!(reader.read().unwrap()[..9 * SPAN], vec![3; 9 * SPAN]);
    // The reader is pinned again.
    fill(&writer, 8, 4).unwrap();
    until("the record has come", || reader.age().positions > 0);
    assert_eq!(reader.read().unwrap()[..9 * SPAN], vec![3; 9 * SPAN]);
}

/// Otherwise the thread of the link, on which the lease depends, would wait for the guard.
#[test]
fn a_long_held_guard_delays_records_and_not_the_link() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    assert_eq!(read(&other, 1), 1);
    let guard = other.region().read();
    let before = guard.to_vec();
    for value in 2..=20 {
        assert_eq!(add(&one, 1, 1).unwrap(), value);
        // The server answers the node, and receives from it, as before.
        let fate = other.outcome(one.id(), one.progress().acked, PATIENCE);
        assert_eq!(fate, Ok(RecordOutcome::Committed));
    }
    assert_eq!(guard.to_vec(), before);
    drop(guard);
    assert_eq!(read(&other, 1), 20);
}

#[test]
fn readers_that_must_not_expire_end_the_node_and_keep_their_view() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(32, &["a"]);
    let _serving = place.serve();
    let (node, writer) = bounded(&place, PinnedOverflow::FallBehind);
    fill(&writer, 8, 1).unwrap();
    assert_eq!(read(&node, 0).to_le_bytes(), [1; 8]);
    let reader = node.reader().unwrap();
    fill(&writer, 8, 2).unwrap();
    fill(&writer, 17, 3).unwrap();
    until("the node has left", || node.gone().is_some());
    assert_eq!(node.gone(), Some(NodeGone::Ended(NodeEnd::Left)));
    assert_eq!(reader.read().unwrap()[..8 * SPAN], vec![1; 8 * SPAN]);
    assert!(node.begin(RestoreMode::Restore).is_err());
    drop(reader);
    drop(node);
    // Neither its locks nor its journal are in the way.
    fill(&writer, 17, 4).unwrap();
    let node = place.join("bounded");
    until("what was left is buried", || node.orphans().is_empty());
    assert_eq!(read(&node, 16).to_le_bytes(), [4; 8]);
}

/// An address far from where the system puts mappings.
const ADDRESS: usize = 0x1200_0000_0000;

#[test]
fn a_region_with_an_address_is_mapped_there_in_every_join() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_with(4, &["a"], |plan| plan.address = ADDRESS as u64);
    let _serving = place.serve();
    let one = place.join("one");
    assert_eq!(one.region().as_ptr().addr(), ADDRESS);
    // A pointer in the region to itself.
    let at = ADDRESS + SPAN;
    assert_eq!(add(&one, 1, at as u64).unwrap(), at as u64);
    // This process has no room for another copy at that address.
    let refused = Node::join(place.options("other")).err();
    assert!(matches!(refused, Some(JoinError::Map(_))), "{refused:?}");
    one.leave().expect("it leaves");
    let other = place.join("other");
    assert_eq!(other.region().as_ptr().addr(), ADDRESS);
    assert_eq!(read(&other, 1), at as u64);
}

/// The directory under `from` that contains a file `name`.
fn directory_of(from: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    let mut entries = std::fs::read_dir(from).ok()?.flatten();
    if from.join(name).is_file() {
        return Some(from.to_owned());
    }
    entries.find_map(|entry| directory_of(&entry.path(), name))
}

/// One file that could not be created for a moment ended the node for good (rule 17).
#[test]
fn a_refused_trim_is_repeated_and_ends_no_node() {
    const COMMITS: u64 = 60;
    const LOG_BYTES: u64 = 64 << 10;
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let one = Node::join(NodeOptions {
        log_bytes: LOG_BYTES,
        ..place.options("one")
    })
    .expect("it joins");
    // The mark of the log's beginning is replaced by a new file. Here a directory has that file's name.
    let journal = directory_of(&place.directory.join("one"), "node").expect("a node's journal is marked");
    let obstacle = journal.join("node.new");
    std::fs::create_dir(&obstacle).expect("nothing has that name for long");
    let done = std::sync::atomic::AtomicU64::new(0);
    let count = || done.load(std::sync::atomic::Ordering::SeqCst);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..COMMITS {
                fill(&one, 1, round as u8).expect("it commits in the end");
                done.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        });
        // The log has no more room, and should have been trimmed long before.
        until("a commit waits for room", || {
            let before = count();
            std::thread::sleep(std::time::Duration::from_millis(60));
            before * SPAN as u64 > LOG_BYTES / 2 && count() == before
        });
        assert_eq!(one.gone(), None);
        assert!(count() < COMMITS, "so much has no room in the log");
        std::fs::remove_dir(&obstacle).expect("it is ours");
    });
    assert_eq!(count(), COMMITS);
    assert_eq!(one.gone(), None);
    one.leave().expect("it leaves");
}
