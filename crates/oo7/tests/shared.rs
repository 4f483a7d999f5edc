//! The benchmark in a heap of a shared region: nodes take turns, and each finds what the others have made of the database.

use std::time::Duration;

use netram_lender::{Config, Lender};
use netram_oo7::operation::Operation;
use netram_oo7::{
    Audit, DateIndex, Graph, OnSharedHeap, Parameters, Plain, Store, StoreError, Work, audit, build,
};
use netram_proto::port::Durability;
use netram_proto::shared::{Hold, LockId};
use netram_rvm::RangeError;
use netram_shared::server::serve::{ServeConfig, Serving};
use netram_shared::server::{Plan, Spans, Store as Directory};
use netram_shared::{Node, Options};
use netram_transport::{Address, Security};

const LOCK: LockId = LockId(0);

/// A lender, a server, and the directory that they and the nodes are in.
struct World {
    directory: tempfile::TempDir,
    // Dropped first.
    _serving: Serving,
    _lender: Lender,
}

impl World {
    fn new(bytes: u64) -> World {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let address = |name: &str| Address::Unix(directory.path().join(name));
        let lender = Lender::start(Config {
            name: "a".to_owned(),
            listen: vec![address("lender.sock")],
            security: Security::Insecure,
            memory: 256 << 20,
            store: Some(directory.path().join("lender.mem")),
            ..Config::default()
        });
        let plan = Plan {
            bytes,
            address: 0,
            spans: Spans::even(bytes, bytes).unwrap(),
            log_bytes: 64 << 20,
            nodes_settings: format!(
                "lenders = [\"{}\"]\ninsecure = true\none-domain = true\nmembers = 1\nwindow = \"16MiB\"\n",
                address("lender.sock")
            ),
        };
        let region = directory.path().join("region");
        Directory::create(&region, &plan).unwrap();
        let mut config = ServeConfig::new(vec![address("server.sock")], Security::Insecure);
        // Nobody dies here, and a loaded machine sleeps.
        config.lease = Duration::from_secs(20);
        World {
            _serving: Serving::start(&region, config).unwrap(),
            _lender: lender.unwrap(),
            directory,
        }
    }

    fn join(&self, name: &str) -> Node {
        let server = Address::Unix(self.directory.path().join("server.sock"));
        let options = Options {
            log_bytes: 64 << 20,
            ..Options::new(server, Security::Insecure, self.directory.path().join(name))
        };
        Node::join(options).unwrap()
    }
}

fn audited(store: &impl Store, parameters: &Parameters) -> Audit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

fn run(store: &impl Store, operation: Operation, parameters: &Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}

#[test]
fn nodes_that_take_turns_agree_with_plain_memory() {
    let parameters: Parameters = "tiny-3".parse().unwrap();
    let plain = Plain::default();
    build(&plain, &parameters).unwrap();
    let world = World::new(parameters.heap_bytes());
    let nodes = ["one", "two"].map(|name| world.join(name));
    OnSharedHeap::format(&nodes[0], LOCK).unwrap();
    let space = |node| OnSharedHeap::open(node, LOCK, Durability::Remote).unwrap();
    let built = Graph::create(space(&nodes[0]), &parameters, DateIndex::All).unwrap();
    build(&built, &parameters).unwrap();
    let graphs = [built, Graph::open(space(&nodes[1])).unwrap()];
    for (turn, operation) in Operation::ALL.iter().enumerate() {
        let count = run(&plain, *operation, &parameters);
        assert_eq!(
            run(&graphs[turn % 2], *operation, &parameters),
            count,
            "{operation}"
        );
        if operation.changes() {
            let expected = audited(&plain, &parameters);
            for node in &nodes {
                let reading = Graph::open(space(node).reading()).unwrap();
                assert_eq!(audited(&reading, &parameters), expected, "{operation}");
            }
        }
    }
    for node in &nodes {
        let mut txn = node.begin(netram_rvm::Mode::Restore).unwrap();
        txn.acquire(LOCK, Hold::Shared).unwrap();
        txn.heap(LOCK).unwrap().check().unwrap();
    }
}

#[test]
fn a_transaction_that_only_reads_changes_nothing() {
    let parameters: Parameters = "tiny-3".parse().unwrap();
    let world = World::new(parameters.heap_bytes());
    let node = world.join("one");
    OnSharedHeap::format(&node, LOCK).unwrap();
    let space = || OnSharedHeap::open(&node, LOCK, Durability::Remote).unwrap();
    let store = Graph::create(space(), &parameters, DateIndex::All).unwrap();
    build(&store, &parameters).unwrap();
    let reading = Graph::open(space().reading()).unwrap();
    let mut open = reading.begin().unwrap();
    let Err(StoreError::Below(error)) = Operation::T2a.run(&mut open, &parameters, 1) else {
        panic!("it changed something");
    };
    let error = error.downcast_ref::<RangeError>();
    assert!(
        matches!(error, Some(RangeError::NotHeld { lock: Some(0), .. })),
        "{error:?}"
    );
}
