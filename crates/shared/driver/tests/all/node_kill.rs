//! Nodes and their server in processes of their own are killed and stopped by signals while they commit.
//! Other nodes continue, no acknowledged commit is missing, and none is applied twice.
//!
//! Every commit increments a counter, so that the counters tell the number of commits.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::common::processes::{NodeProcess, commit_until_told, name, place_of_child, serve};
use crate::common::world::{LEASE_LONG, LEASE_SHORT, SPAN, TestPaths, add_and_fill, add_as, try_read};
use crate::common::{PATIENCE, until};
use netram_lender::Lender;
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::Node;
use netram_shared::node::TxnCommitError;
use netram_shared::server::{RegionStore, merge_orphans};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{LockId, LockMode, RecordNumber};

/// A child that has not called `exec` yet has copies of this process's files, and with them its locks: one
/// test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const LOCKS: u32 = 3;
/// A log size that holds a few records of a span each, like the members' windows.
const LOG_SMALL: u64 = 64 << 10;

/// Not a test of its own: the server.
#[test]
#[ignore = "a process of the other tests"]
fn server() {
    let Some(place) = place_of_child() else { return };
    serve(place.serve_shortly());
}

/// Not a test of its own: a server with a lease that never ends.
#[test]
#[ignore = "a process of the other tests"]
fn patient_server() {
    let Some(place) = place_of_child() else { return };
    serve(place.serve());
}

/// Not a test of its own: a lender.
#[test]
#[ignore = "a process of the other tests"]
fn lender() {
    let Some(place) = place_of_child() else { return };
    serve(place.lender(&name()));
}

/// Not a test of its own: a node.
#[test]
#[ignore = "a process of the other tests"]
fn node() {
    let Some(place) = place_of_child() else { return };
    let add = |node: &Node, lock| add_as(node, lock, 1).map(|(_, commit)| commit);
    commit_until_told(LOCKS, || place.join(&name()), add);
}

/// Not a test of its own: a node whose log holds few of its records.
#[test]
#[ignore = "a process of the other tests"]
fn fat_node() {
    let Some(place) = place_of_child() else { return };
    let join = || place.join_as(&name(), |options| options.log_bytes = LOG_SMALL);
    commit_until_told(LOCKS, join, add_and_fill);
}

/// A server and two nodes that commit.
struct KillFixture {
    place: TestPaths,
    server: NodeProcess,
    nodes: [NodeProcess; 2],
    _lender: Lender,
    _directory: tempfile::TempDir,
    // Dropped last: until then there are children.
    _alone: MutexGuard<'static, ()>,
}

impl KillFixture {
    fn start() -> KillFixture {
        let alone = alone();
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let place = TestPaths {
            directory: directory.path().to_owned(),
        };
        let lender = place.lender("a");
        place.create(LOCKS as usize, &["a"]);
        let server = KillFixture::serve(&place);
        let nodes = ["one", "two"].map(|name| NodeProcess::start(&place, "node_kill::node", name));
        nodes.iter().for_each(|node| node.commits(30));
        KillFixture {
            place,
            server,
            nodes,
            _lender: lender,
            _directory: directory,
            _alone: alone,
        }
    }

    fn serve(place: &TestPaths) -> NodeProcess {
        NodeProcess::serve(place, "node_kill::server", "server")
    }
}

/// Total number of commits.
fn commits(place: &TestPaths) -> u64 {
    let end = Instant::now() + PATIENCE;
    loop {
        let judge = place.join("judge");
        let counted = (0..LOCKS).map(|lock| try_read(&judge, lock));
        match counted.sum::<Result<u64, TxnCommitError>>() {
            Ok(counted) => return counted,
            // The machine let the judge wait for longer than a lease.
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
    }
}

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_killed_nodes_acknowledged_commits_survive_and_others_continue() {
    let world = KillFixture::start();
    let ([one, two], place) = (world.nodes, &world.place);
    let killed = one.kill();
    // Enough commits to have had every lock.
    two.commits(60);
    let acked = killed + two.leave();
    let counted = commits(place);
    // Its last commit may be there or not.
    assert!(
        (acked..=acked + 1).contains(&counted),
        "{acked} were acknowledged, {counted} are there"
    );
    // The machine's next process offers the journal, and nothing is applied twice.
    let again = place.join("one");
    until("what was left is offered", || again.orphans().is_empty());
    again.leave().expect("it leaves");
    assert_eq!(commits(place), counted);
}

#[test]
fn a_node_that_slept_beyond_its_lease_learns_its_commits_outcome() {
    let world = KillFixture::start();
    let ([one, two], place) = (world.nodes, &world.place);
    one.freeze();
    std::thread::sleep(LEASE_SHORT * 2);
    two.commits(60);
    one.signal("-CONT");
    until("it is told that it was fenced", || {
        one.said.ended.load(Ordering::SeqCst) > 0
    });
    one.commits(30);
    let acked = one.leave() + two.leave();
    assert_eq!(commits(place), acked);
}

#[test]
fn a_killed_and_restarted_server_loses_nothing() {
    let world = KillFixture::start();
    let ([one, two], place) = (world.nodes, &world.place);
    world.server.kill();
    let _server = KillFixture::serve(place);
    one.commits(60);
    two.commits(60);
    let acked = one.leave() + two.leave();
    assert_eq!(commits(place), acked);
}

/// Every commit adds to the value in its node's copy: a missing record would make the counters wrong.
#[test]
fn nodes_that_join_during_writes_lack_no_record() {
    let world = KillFixture::start();
    let ([one, two], place) = (world.nodes, &world.place);
    let mut acked = 0;
    for _ in 0..4 {
        let three = NodeProcess::start(place, "node_kill::node", "three");
        three.commits(10);
        acked += three.leave();
    }
    acked += one.leave() + two.leave();
    assert_eq!(commits(place), acked);
}

/// Each node writes many times its log and windows, under rotating locks: trimmed records are in the region.
#[test]
fn logs_of_several_writers_that_wrap_around_lose_nothing() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create_with(LOCKS as usize, &["a"], |plan| {
        plan.nodes_settings = plan.nodes_settings.replace("1MiB", "32KiB");
    });
    let server = KillFixture::serve(&place);
    let nodes = ["one", "two", "three"].map(|name| NodeProcess::start(&place, "node_kill::fat_node", name));
    let worn = 5 * LOG_SMALL / SPAN as u64;
    nodes.iter().for_each(|node| node.commits(worn));
    server.kill();
    let _server = KillFixture::serve(&place);
    nodes.iter().for_each(|node| node.commits(worn));
    let acked: u64 = nodes.map(NodeProcess::leave).into_iter().sum();
    assert_eq!(commits(&place), acked);
}

/// One member suffices for a while; the lender that comes back has its memory, and is a member again.
#[test]
fn lenders_killed_in_turn_stop_no_node_and_lose_nothing() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lend = |name: &str| NodeProcess::serve(&place, "node_kill::lender", name);
    let mut lenders = ["a", "b"].map(|name| Some(lend(name)));
    place.create(LOCKS as usize, &["a", "b"]);
    let _server = KillFixture::serve(&place);
    let [one, two] = ["one", "two"].map(|name| NodeProcess::start(&place, "node_kill::node", name));
    [&one, &two].iter().for_each(|node| node.commits(30));
    for (at, name) in ["a", "b"].into_iter().enumerate() {
        // Until the process has ended, its memory file is locked.
        lenders[at].take().expect("it runs").kill();
        [&one, &two].iter().for_each(|node| node.commits(30));
        lenders[at] = Some(lend(name));
        [&one, &two].iter().for_each(|node| node.commits(30));
    }
    let killed = one.kill();
    two.commits(30);
    let acked = killed + two.leave();
    let counted = commits(&place);
    assert!(
        (acked..=acked + 1).contains(&counted),
        "{acked} were acknowledged, {counted} are there"
    );
}

/// Its link takes no more, and the server keeps a bounded number of records for it.
#[test]
fn a_node_that_falls_behind_rejoins_and_loses_nothing() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(LOCKS as usize + 1, &["a"]);
    // The server keeps at least the records of its window.
    std::fs::write(
        place.region().join("netram.toml"),
        "[journal]\nwindow = \"1MiB\"\n",
    )
    .unwrap();
    let serving = place.serve_as(|config| {
        config.lease = LEASE_LONG;
        // More than the writer may send before the server checks the other links.
        config.recent_bytes = 1 << 20;
    });
    let one = NodeProcess::start(&place, "node_kill::node", "one");
    one.commits(30);
    one.freeze();
    // Under a lock that the other node never uses; more than all buffers on the way.
    let writer = place.join("writer");
    for round in 0..1500_u32 {
        let mut txn = writer.begin(RestoreMode::Restore).expect("there is a node");
        txn.acquire(LockId(LOCKS), LockMode::Exclusive)
            .expect("it is free");
        txn.write(LOCKS as usize * SPAN, &[round as u8; SPAN])
            .expect("it is held");
        txn.commit(Durability::Remote).expect("it commits");
    }
    one.signal("-CONT");
    until("it is told to begin anew", || {
        one.said.ended.load(Ordering::SeqCst) > 0
    });
    one.commits(30);
    let acked = one.leave();
    assert_eq!(commits(&place), acked);
    drop(serving);
}

/// Records on the server's disk survive. Those that were only in memory are lost, and no outcome says
/// otherwise.
#[test]
fn after_a_total_power_failure_durable_records_survive_and_the_rest_is_reported() {
    let _alone = alone();
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let lender = NodeProcess::serve(&place, "node_kill::lender", "a");
    place.create(LOCKS as usize, &["a"]);
    let serves = || NodeProcess::serve(&place, "node_kill::patient_server", "server");
    let server = serves();
    let nodes = ["one", "two"].map(|name| NodeProcess::start(&place, "node_kill::node", name));
    nodes.iter().for_each(|node| node.commits(30));
    let kept = nodes.each_ref().map(NodeProcess::record);
    let judge = place.join("judge");
    for (node, number) in kept {
        let fate = judge.outcome(node, number, PATIENCE);
        assert_eq!(fate, Ok(RecordOutcome::Committed));
    }
    // A dead judge would have to be waited for.
    judge.leave().expect("it leaves");
    nodes.iter().for_each(|node| node.commits(30));
    let ids: Vec<String> = [&lender, &server, &nodes[0], &nodes[1]]
        .map(|process| process.child.id().to_string())
        .to_vec();
    let killed = Command::new("kill").arg("-9").args(ids).status();
    assert!(killed.expect("kill runs").success());
    lender.wait();
    server.wait();
    let acked = nodes.map(|node| {
        let said = Arc::clone(&node.said);
        node.wait();
        *said.record.lock().expect("no panic")
    });
    // The lender comes back empty. Only the nodes' disks have the rest, without proof.
    std::fs::remove_file(place.directory.join("a.mem")).expect("the lender had it");
    let _lender = NodeProcess::serve(&place, "node_kill::lender", "a");
    let (mut store, _) = RegionStore::open(&place.region(), || ()).expect("the region is whole");
    let roots = ["one", "two"].map(|name| place.directory.join(name));
    let merged = merge_orphans(&mut store, &roots, true).expect("it is merged");
    store.close().expect("it closes");
    let _server = serves();
    let judge = place.join("another judge");
    let mut counted = 0;
    for ((node, number), (id, acked)) in kept.into_iter().zip(acked) {
        assert_eq!(node.0, id, "it was never fenced");
        let its = merged.iter().find(|left| left.node == node);
        let last = its.expect("its directory was named").last;
        assert!(last >= number, "{number} was kept, {last} is there");
        assert!(last.0 <= acked + 1, "{last} is there, {acked} was acknowledged");
        let fate = |number| judge.outcome(node, RecordNumber(number), PATIENCE);
        assert_eq!(fate(last.0), Ok(RecordOutcome::Committed));
        assert_eq!(fate(last.0 + 1), Ok(RecordOutcome::Aborted));
        counted += last.0;
    }
    judge.leave().expect("it leaves");
    assert_eq!(commits(&place), counted);
}
