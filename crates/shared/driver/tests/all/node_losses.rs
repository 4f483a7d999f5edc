//! A node whose lenders, or whose server, are lost, lie, or come back with other data.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::world::{SPAN, TestPaths, add, read};
use crate::common::{PATIENCE, TestAcceptor, next, until};
use netram_proto::id::Lsn;
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;
use netram_shared::channel::Channel;
use netram_shared::node::{NodeGone, TxnCommitError};
use netram_shared::server::RegionStore;
use netram_shared::server::serve::ServingRegion;
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::message::{JoinReply, RecordOutcome, RegionOpening};
use netram_shared_machine::{LockId, NodeId, Position, RecordNumber, RegionId, ToNode, ToServer};

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

#[test]
fn commits_continue_when_one_or_all_lenders_are_lost() {
    let (_directory, place) = place();
    let lenders = ["a", "b"].map(|name| place.lender(name));
    place.create(4, &["a", "b"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("other"));
    let (count, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                add(&one, 1, 1).unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        let commits = |more: u64| {
            let enough = count.load(Ordering::SeqCst) + more;
            until("it commits", || count.load(Ordering::SeqCst) >= enough);
        };
        commits(20);
        let [a, b] = lenders;
        // Probably in the middle of a commit.
        drop(b);
        commits(20);
        drop(a);
        // Only the server's disk has these.
        commits(20);
        let _again = place.lender("a");
        commits(20);
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(read(&other, 1), count.load(Ordering::SeqCst));
    one.leave().expect("it leaves");
}

/// Makes a second commit whose record is only in the node's journal when the server declares the node dead.
/// Its outcome is unknown, and the node ends.
fn cut_off(place: &TestPaths, one: Node) -> (NodeId, ServingRegion) {
    let id = one.id();
    let (serving, ended) = std::thread::scope(|scope| {
        let commit = scope.spawn(|| add(&one, 1, 1));
        until("the record is in the journal", || {
            one.progress().appended == RecordNumber(2)
        });
        assert_eq!(one.progress().acked, RecordNumber(1));
        let (mut store, _) = RegionStore::open(&place.region(), || ()).unwrap();
        let end = store.fence(id).unwrap();
        store.wait(end).unwrap();
        store.close().unwrap();
        (place.serve(), commit.join().unwrap())
    });
    let unknown =
        matches!(ended, Err(TxnCommitError::Unknown { node, number: RecordNumber(2), .. }) if node == id);
    assert!(unknown, "{ended:?}");
    (id, serving)
}

#[test]
fn an_unknown_commit_without_members_is_aborted() {
    let (_directory, place) = place();
    place.create(4, &[]);
    let serving = place.serve();
    let one = place.join("one");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    drop(serving);
    let (id, _serving) = cut_off(&place, one);
    // Without members only the server's disk acknowledges, and it has not: the journal's end is proven.
    let one = place.join("one");
    let fate = |number| one.outcome(id, RecordNumber(number), PATIENCE).unwrap();
    assert_eq!(
        (fate(1), fate(2)),
        (RecordOutcome::Committed, RecordOutcome::Aborted)
    );
    assert_eq!(read(&one, 1), 1);
    until("what was left is buried", || one.orphans().is_empty());
}

#[test]
fn the_outcome_of_an_unknown_commit_matches_the_memory() {
    let (_directory, place) = place();
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve();
    let one = place.join("one");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    until("the server has it", || one.progress().durable == RecordNumber(1));
    // No lender and no server is left to acknowledge.
    drop((serving, lender));
    let (id, _serving) = cut_off(&place, one);
    let _lender = place.lender("a");
    let one = place.join("one");
    // The server may read the journal's member, which lacks the record, or be offered the journal, which has
    // it.
    let fate = one.outcome(id, RecordNumber(2), PATIENCE).unwrap();
    let expected = match fate {
        RecordOutcome::Committed => 2,
        RecordOutcome::Aborted => 1,
        RecordOutcome::Open | RecordOutcome::Forgotten => panic!("{fate:?}"),
    };
    assert_eq!(read(&one, 1), expected);
    assert_eq!(one.outcome(id, RecordNumber(2), PATIENCE), Ok(fate));
    assert_eq!(
        one.outcome(id, RecordNumber(3), PATIENCE),
        Ok(RecordOutcome::Aborted)
    );
    until("what was left is buried", || one.orphans().is_empty());
}

/// A server that sends what the test says.
struct ScriptedServer(Channel);

impl ScriptedServer {
    fn say(&mut self, message: &ToNode<Vec<u8>>) {
        let mut head = Vec::new();
        message.head(&mut head);
        self.0.queue(&[&head]);
        self.0.flush().unwrap();
    }

    fn hear(&mut self) -> ToServer<Vec<u8>> {
        let bytes = next(&mut self.0).unwrap();
        ToServer::decode(&bytes).unwrap().map(<[u8]>::to_vec)
    }

    /// Admits a node, which gets the first id.
    fn let_in(&mut self) {
        let ToServer::Join(join) = self.hear() else {
            panic!("it does not say who it is")
        };
        self.say(&ToNode::Joined(JoinReply {
            node: NodeId(1),
            lease: Nanos::from_ms(60_000),
            position: Position(0),
            opening: RegionOpening {
                region: RegionId(5),
                bytes: SPAN as u64,
                address: 0,
                spans: vec![(LockId(0), 0, SPAN as u64)],
                record_bytes_max: 1 << 20,
                settings: Vec::new(),
            },
            applied: Vec::new(),
            versions: Vec::new(),
        }));
        self.say(&ToNode::Durable {
            number: RecordNumber(0),
            end: join.begins,
            view: join.view.version,
        });
        self.say(&ToNode::Current);
    }
}

#[test]
fn a_server_that_confirms_an_unwritten_record_ends_the_node() {
    let (_directory, place) = place();
    let house = TestAcceptor::open();
    let options = NodeOptions {
        server: house.address().clone(),
        security: house.security.clone(),
        ..place.options("one")
    };
    let (node, mut server) = std::thread::scope(|scope| {
        let joining = scope.spawn(|| Node::join(options).expect("it joins"));
        let mut server = ScriptedServer(house.arrival().channel);
        server.let_in();
        (joining.join().unwrap(), server)
    });
    assert_eq!(node.gone(), None);
    server.say(&ToNode::Durable {
        number: RecordNumber(3),
        end: ChainPoint {
            lsn: Lsn(4096),
            chain: 7,
        },
        view: 1,
    });
    until("the node ends", || node.gone().is_some());
    assert_eq!(node.gone(), Some(NodeGone::NoSuchEnd(RecordNumber(3))));
    assert!(add(&node, 0, 1).is_err());
}
