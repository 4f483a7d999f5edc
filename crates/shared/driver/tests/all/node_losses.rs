//! What a node does when lenders, or its server, are lost, lie, or come back with another opinion.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::world::{Place, SPAN, add, read};
use crate::common::{House, PATIENCE, next, until};
use netram_proto::id::Lsn;
use netram_proto::time::Span;
use netram_proto::wire::Link;
use netram_shared::channel::Channel;
use netram_shared::node::{CommitError, Gone};
use netram_shared::server::Store;
use netram_shared::server::serve::Serving;
use netram_shared::{Node, Options};
use netram_shared_machine::message::{Fate, Joined, Opening};
use netram_shared_machine::{LockId, NodeId, Number, Position, RegionId, ToNode, ToServer};

fn place() -> (tempfile::TempDir, Place) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = Place {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

#[test]
fn commits_go_on_when_a_lender_is_lost_and_when_all_are() {
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
        // Each in mid-commit, as likely as not.
        drop(b);
        commits(20);
        drop(a);
        // Nobody but the server's disk has these.
        commits(20);
        let _again = place.lender("a");
        commits(20);
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(read(&other, 1), count.load(Ordering::SeqCst));
    one.leave().expect("it leaves");
}

/// A second commit whose record is in the node's journal and nowhere else when the server declares the node dead: nobody can know what
/// becomes of it. The node is gone.
fn cut_off(place: &Place, one: Node) -> (NodeId, Serving) {
    let id = one.id();
    let (serving, ended) = std::thread::scope(|scope| {
        let commit = scope.spawn(|| add(&one, 1, 1));
        until("the record is in the journal", || {
            one.progress().appended == Number(2)
        });
        assert_eq!(one.progress().acked, Number(1));
        let (mut store, _) = Store::open(&place.region(), || ()).unwrap();
        let end = store.fence(id).unwrap();
        store.wait(end).unwrap();
        store.close().unwrap();
        (place.serve(), commit.join().unwrap())
    });
    let unknown = matches!(ended, Err(CommitError::Unknown { node, number: Number(2), .. }) if node == id);
    assert!(unknown, "{ended:?}");
    (id, serving)
}

#[test]
fn a_commit_that_is_unknown_without_members_is_aborted_when_its_node_is_read() {
    let (_directory, place) = place();
    place.create(4, &[]);
    let serving = place.serve();
    let one = place.join("one");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    drop(serving);
    let (id, _serving) = cut_off(&place, one);
    // Without members only the server's disk acknowledges, and that has not: its end is proven.
    let one = place.join("one");
    let fate = |number| one.outcome(id, Number(number), PATIENCE).unwrap();
    assert_eq!((fate(1), fate(2)), (Fate::Committed, Fate::Aborted));
    assert_eq!(read(&one, 1), 1);
    until("what was left is buried", || one.left_behind().is_empty());
}

#[test]
fn the_outcome_of_a_commit_that_is_unknown_is_what_the_memory_shows() {
    let (_directory, place) = place();
    let lender = place.lender("a");
    place.create(4, &["a"]);
    let serving = place.serve();
    let one = place.join("one");
    assert_eq!(add(&one, 1, 1).unwrap(), 1);
    until("the server has it", || one.progress().kept == Number(1));
    // Nobody is left who could acknowledge.
    drop((serving, lender));
    let (id, _serving) = cut_off(&place, one);
    let _lender = place.lender("a");
    let one = place.join("one");
    // The server may read the journal's member, which lacks the record, or be offered the journal, which has it.
    let fate = one.outcome(id, Number(2), PATIENCE).unwrap();
    let expected = match fate {
        Fate::Committed => 2,
        Fate::Aborted => 1,
        Fate::Open | Fate::Forgotten => panic!("{fate:?}"),
    };
    assert_eq!(read(&one, 1), expected);
    assert_eq!(one.outcome(id, Number(2), PATIENCE), Ok(fate));
    assert_eq!(one.outcome(id, Number(3), PATIENCE), Ok(Fate::Aborted));
    until("what was left is buried", || one.left_behind().is_empty());
}

/// A server that says what the test says.
struct Played(Channel);

impl Played {
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

    /// Lets a node in; it has the first id.
    fn let_in(&mut self) {
        let ToServer::Join(join) = self.hear() else {
            panic!("it does not say who it is")
        };
        self.say(&ToNode::Joined(Joined {
            node: NodeId(1),
            lease: Span::from_ms(60_000),
            position: Position(0),
            opening: Opening {
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
        self.say(&ToNode::Kept {
            number: Number(0),
            end: join.begins,
            view: join.view.version,
        });
        self.say(&ToNode::Current);
    }
}

#[test]
fn a_server_that_says_it_keeps_what_was_never_written_is_not_believed() {
    let (_directory, place) = place();
    let house = House::open();
    let options = Options {
        server: house.address().clone(),
        security: house.security.clone(),
        ..place.options("one")
    };
    let (node, mut server) = std::thread::scope(|scope| {
        let joining = scope.spawn(|| Node::join(options).expect("it joins"));
        let mut server = Played(house.arrival().channel);
        server.let_in();
        (joining.join().unwrap(), server)
    });
    assert_eq!(node.gone(), None);
    server.say(&ToNode::Kept {
        number: Number(3),
        end: Link {
            lsn: Lsn(4096),
            chain: 7,
        },
        view: 1,
    });
    until("the node ends", || node.gone().is_some());
    assert_eq!(node.gone(), Some(Gone::Kept(Number(3))));
    assert!(add(&node, 0, 1).is_err());
}
