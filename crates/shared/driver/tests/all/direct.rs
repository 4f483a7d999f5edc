//! Records sent directly between nodes arrive early, and correctness does not depend on them.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::script::{Bytes, ScriptedPeer};
use crate::common::world::{SPAN, TestPaths, add, read};
use crate::common::{PATIENCE, TestAcceptor, history, until, until_stopped};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::channel::{AcceptedSession, Channel};
use netram_shared::node::{AcquireError, NodeGone};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::message::{PeerEndpoint, PeerHint, ToPeer};
use netram_shared_machine::{LockId, LockMode, LockVersion, NodeId, RecordNumber, Stamp, ToServer};
use netram_transport::{MulticastGroup, MulticastReceiver, MulticastSender, Security};
use rustix::process::{Pid, Signal, kill_process};

const PLACE: &str = "NETRAM_TEST_PLACE";

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

/// Joins a node that listens for peers.
fn join_open(place: &TestPaths, name: &str) -> Node {
    let options = NodeOptions {
        listen: Some(place.address(&format!("{name}-peers"))),
        ..place.options(name)
    };
    Node::join(options).expect("the node joins")
}

fn meet(nodes: &[&Node], peers: usize) {
    until("the nodes have met", || {
        nodes.iter().all(|node| node.direct_counts().peers == peers)
    });
}

/// Waits until a node's commits are safe at its members, not only at the server, and are sent directly. Then
/// the node has the lock's token. Returns the lock's version and the counter under it.
fn until_members(node: &Node, lock: u32) -> (u64, u64) {
    let sent = || node.direct_counts().unicast + node.direct_counts().multicast;
    until("its records go straight", || {
        let before = sent();
        let mut txn = node.begin(RestoreMode::Restore).unwrap();
        txn.acquire(LockId(lock), LockMode::Exclusive).unwrap();
        txn.set(lock as usize * SPAN, &(value(node, lock) + 1)).unwrap();
        txn.commit(Durability::Remote).unwrap().votes.rule && sent() > before
    });
    (node.version(LockId(lock)).0, value(node, lock))
}

fn value(node: &Node, lock: u32) -> u64 {
    node.region().get(lock as usize * SPAN).expect("inside")
}

/// Not a test of its own: the server.
#[test]
#[ignore = "a process of the other tests"]
fn server() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // If the process waits in vain, it ends, and the test with it.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let serving = TestPaths { directory }.serve();
    writeln!(std::io::stdout(), "\nserving").expect("somebody reads");
    // Until the test ends, or kills it.
    let _ = std::io::stdin().lines().next();
    drop(serving);
}

/// A server in a process of its own, killed at the end.
struct ServerChild(Child, Arc<AtomicBool>);

impl ServerChild {
    fn start(place: &TestPaths) -> ServerChild {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "direct::server", "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let serves = said.any(|line| line.is_ok_and(|line| line.contains("serving")));
        assert!(serves, "the server ended before it served");
        std::thread::spawn(move || said.for_each(drop));
        ServerChild(child, Arc::default())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("the server is there");
    }

    /// Stops the process. If the test waits for it, it continues after a while, and the test fails.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let (pid, over) = (Pid::from_child(&self.0), Arc::clone(&self.1));
        std::thread::spawn(move || {
            std::thread::sleep(2 * PATIENCE);
            if !over.load(Ordering::SeqCst) {
                // The process may just have ended.
                let _ = kill_process(pid, Signal::CONT);
            }
        });
        until_stopped(self.0.id());
    }
}

impl Drop for ServerChild {
    fn drop(&mut self) {
        self.1.store(true, Ordering::SeqCst);
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_update_is_visible_at_a_peer_while_the_server_is_stopped() {
    const ROUNDS: u64 = 10;
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let server = ServerChild::start(&place);
    let one = join_open(&place, "one");
    let other = place.join("other");
    let alone = Node::join(NodeOptions {
        direct: false,
        ..place.options("alone")
    });
    let alone = alone.expect("the node joins");
    meet(&[&one, &other], 1);
    assert_eq!(alone.direct_counts().peers, 0);
    // Both have a token to write with.
    let two = until_members(&one, 2);
    let three = until_members(&other, 3);
    for node in [&one, &other, &alone] {
        for (lock, (version, _)) in [(2, two), (3, three)] {
            assert_eq!(
                node.wait_version(LockId(lock), LockVersion(version), PATIENCE),
                Ok(true)
            );
        }
    }

    server.stop();
    let before = other.direct_counts();
    for round in 1..=ROUNDS {
        add(&one, 2, 5).unwrap();
        assert_eq!(
            other.wait_version(LockId(2), LockVersion(two.0 + round), PATIENCE),
            Ok(true)
        );
        assert_eq!(value(&other, 2), two.1 + 5 * round);
        // And in the other direction over the same link.
        add(&other, 3, 1).unwrap();
        assert_eq!(
            one.wait_version(LockId(3), LockVersion(three.0 + round), PATIENCE),
            Ok(true)
        );
        assert_eq!(value(&one, 3), three.1 + round);
    }
    assert_eq!(other.direct_counts().applied, before.applied + ROUNDS);
    assert_eq!(alone.version(LockId(2)), LockVersion(two.0), "nobody told it");
    server.signal(Signal::CONT);
    assert_eq!(
        alone.wait_version(LockId(2), LockVersion(two.0 + ROUNDS), PATIENCE),
        Ok(true)
    );
    // The server has each record once, and grants the locks after them.
    let (two, three) = (two.1 + 5 * ROUNDS, three.1 + ROUNDS);
    assert_eq!(add(&other, 2, 1).unwrap(), two + 1);
    assert_eq!(add(&alone, 3, 1).unwrap(), three + 1);
    assert_eq!((read(&one, 2), read(&one, 3)), (two + 1, three + 1));
    for node in [one, other, alone] {
        node.leave().expect("it leaves");
    }
}

/// A waiting thread receives the record itself. If it sleeps, or none waits, a thread of the node does.
#[test]
fn direct_records_arrive_for_polling_sleeping_and_no_waiters() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let server = ServerChild::start(&place);
    let (one, other) = (join_open(&place, "one"), place.join("other"));
    meet(&[&one, &other], 1);
    let (version, mut counter) = until_members(&one, 2);
    let mut version = LockVersion(version);
    assert_eq!(other.wait_version(LockId(2), version, PATIENCE), Ok(true));
    server.stop();
    for round in 0..30 {
        version = version.next();
        std::thread::scope(|scope| {
            // At once, after the waiter has begun to sleep, or without a waiter.
            let waits = (round % 3 > 0).then(|| {
                let waits = scope.spawn(|| other.wait_version(LockId(2), version, PATIENCE));
                std::thread::sleep(Duration::from_millis(round % 3 - 1) * 5);
                waits
            });
            counter += 5;
            assert_eq!(add(&one, 2, 5).unwrap(), counter);
            if let Some(waits) = waits {
                assert_eq!(waits.join().expect("no panic"), Ok(true));
            }
        });
        until("the record is in the memory", || value(&other, 2) == counter);
    }
    server.signal(Signal::CONT);
}

/// A record that was not sent, or lost, comes from the server; later ones are early again.
#[test]
fn a_lost_direct_record_comes_from_the_server() {
    const LOCKS: u32 = 100;
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(LOCKS as usize, &["a"]);
    let _serving = place.serve();
    let (one, other) = (join_open(&place, "one"), place.join("other"));
    meet(&[&one, &other], 1);
    let (mut version, counter) = until_members(&one, 0);
    let linked = one.direct_counts().unicast;
    let mut txn = one.begin(RestoreMode::Restore).unwrap();
    let locks: Vec<_> = (0..LOCKS)
        .map(|lock| (LockId(lock), LockMode::Exclusive))
        .collect();
    txn.acquire_all(&locks).unwrap();
    txn.write(8, &vec![7; LOCKS as usize * SPAN - 8]).unwrap();
    txn.commit(Durability::Remote).unwrap();
    assert_eq!(one.direct_counts().unicast, linked, "it is too long");
    assert_eq!(other.wait_version(LockId(99), LockVersion(1), PATIENCE), Ok(true));
    let before = other.direct_counts().applied;
    // The long record wrote under that lock, too.
    version += 1;
    let first = version;
    // If the server happens to be faster, one more is tried.
    until("one comes straight", || {
        version += 1;
        add(&one, 0, 1).unwrap();
        assert_eq!(
            other.wait_version(LockId(0), LockVersion(version), PATIENCE),
            Ok(true)
        );
        other.direct_counts().applied > before
    });
    assert_eq!(value(&other, 0), counter + version - first);
    assert_eq!(value(&other, 99), 0x0707_0707_0707_0707);
}

/// A scripted node: the server names it, and the other nodes connect to its acceptor.
struct ScriptedNode {
    script: ScriptedPeer,
    house: TestAcceptor,
}

impl ScriptedNode {
    fn join(place: &TestPaths) -> ScriptedNode {
        let house = TestAcceptor::open_with(|config| config.security = Security::Insecure);
        let (mut script, joined) = ScriptedPeer::join(&place.address("server"), &Security::Insecure, 0, 77);
        script.whole(joined.opening.bytes);
        script.say(&ToServer::Endpoint(PeerEndpoint {
            address: house.address().to_string(),
            tune: None,
        }));
        ScriptedNode { script, house }
    }

    /// The link that a node has opened, after its introduction.
    fn visited(&mut self) -> AcceptedSession {
        let mut arrival = self.house.arrival();
        let hello = crate::common::next(&mut arrival.channel).unwrap();
        let Ok(ToPeer::Hello { region, from, to }) = ToPeer::decode(&hello) else {
            panic!("{hello:?} is no greeting");
        };
        assert_eq!((region, to), (self.script.region, self.script.id));
        let answer = ToPeer::Hello {
            region,
            from: to,
            to: from,
        };
        say(&mut arrival.channel, &answer);
        arrival
    }

    fn hint(&self, number: u64, lock: u32, offset: usize) -> ToPeer<Bytes> {
        let stamp = Stamp {
            written: vec![(LockId(lock), LockVersion(1))],
            read: Vec::new(),
        };
        ToPeer::Hint(PeerHint {
            node: self.script.id,
            number: RecordNumber(number),
            needs: Vec::new(),
            payload: history::payload(&stamp, 0, &[(offset as u64, vec![1; 8])]),
        })
    }
}

fn say(channel: &mut Channel, message: &ToPeer<Bytes>) {
    let mut bytes = Vec::new();
    message.head(&mut bytes);
    bytes.extend_from_slice(message.payload().map_or(&[], Vec::as_slice));
    channel.queue(&[&bytes]);
    let end = Instant::now() + PATIENCE;
    while !channel.flush().unwrap() {
        assert!(Instant::now() < end, "nobody reads");
    }
}

#[test]
fn a_peer_that_does_not_read_delays_no_other() {
    const RECORDS: u64 = 4000;
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let mut deaf = ScriptedNode::join(&place);
    let (one, other) = (join_open(&place, "one"), place.join("other"));
    let _unread = deaf.visited();
    meet(&[&one, &other], 2);
    for _ in 0..RECORDS {
        let mut txn = one.begin(RestoreMode::Restore).unwrap();
        txn.acquire(LockId(1), LockMode::Exclusive).unwrap();
        txn.write(SPAN, &[9; SPAN]).unwrap();
        txn.commit(Durability::Remote).unwrap();
    }
    assert_eq!(
        other.wait_version(LockId(1), LockVersion(RECORDS), PATIENCE),
        Ok(true)
    );
    let counts = one.direct_counts();
    assert!(counts.dropped > 0, "{counts:?}");
    assert!(other.direct_counts().applied > 0, "{:?}", other.direct_counts());
}

/// The record is invalid: one byte is under another lock. Neither it nor any later one is applied.
#[test]
fn a_hint_outside_its_locks_is_not_applied() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let mut liar = ScriptedNode::join(&place);
    let one = place.join("one");
    let mut link = liar.visited();
    meet(&[&one], 1);
    say(&mut link.channel, &liar.hint(1, 1, 2 * SPAN - 4));
    say(&mut link.channel, &liar.hint(1, 1, SPAN));
    until("it is not sent to any more", || one.direct_counts().peers == 0);
    assert_eq!((value(&one, 1), value(&one, 2)), (0, 0));
    assert_eq!(one.direct_counts().applied, 0);
    assert_eq!(add(&one, 1, 3).unwrap(), 3);
}

/// A valid record that was never committed. A node that has applied it ends when this would matter, and
/// rejoins with a good copy.
#[test]
fn a_hint_that_was_never_committed_does_not_survive() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let mut liar = ScriptedNode::join(&place);
    let one = place.join("one");
    let mut link = liar.visited();
    meet(&[&one], 1);
    say(&mut link.channel, &liar.hint(1, 1, SPAN));
    assert_eq!(one.wait_version(LockId(1), LockVersion(1), PATIENCE), Ok(true));
    let mut txn = one.begin(RestoreMode::Restore).unwrap();
    let refused = txn.acquire(LockId(1), LockMode::Exclusive).unwrap_err();
    assert!(
        matches!(refused, AcquireError::Gone(_) | AcquireError::Lost),
        "{refused}"
    );
    drop(txn);
    let astray = NodeGone::Ended(netram_shared_machine::node::NodeEnd::Diverged);
    assert_eq!(one.gone(), Some(astray));
    drop(one);
    let one = place.join("one");
    assert_eq!(add(&one, 1, 3).unwrap(), 3);
}

#[test]
fn a_dead_peer_is_dropped_and_a_new_one_connected() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(4, &["a"]);
    let _serving = place.serve();
    let one = join_open(&place, "one");
    let (two, other) = (join_open(&place, "two"), place.join("other"));
    meet(&[&one, &two, &other], 2);
    add(&two, 1, 5).unwrap();
    // As good as killed: its link is closed, and the server fences it.
    drop(two);
    meet(&[&one, &other], 1);
    assert_eq!(add(&one, 1, 1).unwrap(), 6);
    assert_eq!(other.wait_version(LockId(1), LockVersion(2), PATIENCE), Ok(true));
    let two = join_open(&place, "two");
    meet(&[&one, &two, &other], 2);
    let before = (other.direct_counts().applied, two.direct_counts().applied);
    let mut version = 2;
    until("records come straight to both", || {
        version += 1;
        add(&one, 1, 1).unwrap();
        for node in [&two, &other] {
            assert_eq!(
                node.wait_version(LockId(1), LockVersion(version), PATIENCE),
                Ok(true)
            );
        }
        other.direct_counts().applied > before.0 && two.direct_counts().applied > before.1
    });
}

/// A multicast group of this test alone, over loopback; `None`: multicast is not possible there, which the
/// test has reported.
fn group(last: u8) -> Option<MulticastGroup> {
    let open = || -> std::io::Result<MulticastGroup> {
        let address = Ipv4Addr::new(239, 78, std::process::id() as u8, last);
        let port = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let group = MulticastGroup {
            address: SocketAddrV4::new(address, port),
            interface: Some("lo".to_owned()),
        };
        let mut caster = MulticastSender::open(&group, None, 1)?;
        let mut ear = MulticastReceiver::open(&group)?;
        ear.listen(&caster.invite(1), 0);
        let header = netram_proto::wire::FrameHeader::new(netram_proto::wire::FrameKind::Share);
        caster.send(&header, &[0]);
        let end = Instant::now() + Duration::from_secs(2);
        while ear.receive()?.is_none() {
            if Instant::now() > end {
                return Err(std::io::Error::other("what was sent was not heard"));
            }
        }
        Ok(group)
    };
    match open() {
        Ok(group) => Some(group),
        Err(error) => {
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED multicast over loopback, {last}: {error}"
            );
            None
        }
    }
}

#[test]
fn a_record_is_multicast_once_for_all_peers() {
    let Some(group) = group(1) else { return };
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create(20, &["a"]);
    let _serving = place.serve_as(|config| config.multicast = Some(group));
    let one = place.join("one");
    let peers = ["two", "three", "four"].map(|name| place.join(name));
    let all: Vec<&Node> = peers.iter().chain([&one]).collect();
    meet(&all, 3);
    until_members(&one, 0);
    let before = peers.each_ref().map(|node| node.direct_counts().applied);
    let (mut version, mut records) = (0, 0);
    until("records come straight to all", || {
        version += 1;
        add(&one, 1, 1).unwrap();
        // A record of many datagrams.
        let mut txn = one.begin(RestoreMode::Restore).unwrap();
        let locks: Vec<_> = (2..20).map(|lock| (LockId(lock), LockMode::Exclusive)).collect();
        txn.acquire_all(&locks).unwrap();
        txn.write(2 * SPAN, &vec![version as u8; 18 * SPAN]).unwrap();
        let commit = txn.commit(Durability::Remote).unwrap();
        records = commit.record.expect("it wrote").1.0;
        for node in &peers {
            for lock in [1, 19].map(LockId) {
                assert_eq!(node.wait_version(lock, LockVersion(version), PATIENCE), Ok(true));
            }
        }
        let straight = peers.each_ref().map(|node| node.direct_counts().applied);
        // The second record of each round needs the first.
        straight
            .iter()
            .zip(before)
            .all(|(now, before)| *now >= before + 4)
    });
    // The record was sent once for all peers, and not to each.
    let counts = one.direct_counts();
    assert!(counts.multicast <= records, "{counts:?}, {records} records");
    assert_eq!((counts.unicast, counts.dropped), (0, 0));
    for node in &peers {
        assert_eq!(value(node, 1), version);
        assert_eq!(node.region().get::<u8>(20 * SPAN - 1).unwrap(), version as u8);
    }
    assert_eq!(add(&peers[2], 1, 1).unwrap(), version + 1);
    assert_eq!(one.id(), NodeId(1));
}
