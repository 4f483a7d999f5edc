//! The benchmark in a heap of a shared region: nodes take turns, and each finds the others' changes.

use crate::region::SharedTestbed;
use netram_oo7::operation::Operation;
use netram_oo7::{
    DatabaseAudit, DateIndex, ObjectGraph, Oo7Error, Oo7Parameters, Oo7Store, Oo7Transaction, PlainStore,
    SharedHeapSpace, audit, build,
};
use netram_proto::port::Durability;
use netram_rvm::RangeError;
use netram_shared_machine::{LockId, LockMode};

const LOCK: LockId = LockId(0);

fn audited(store: &impl Oo7Store, parameters: &Oo7Parameters) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

fn run(store: &impl Oo7Store, operation: Operation, parameters: &Oo7Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}

#[test]
fn nodes_that_take_turns_agree_with_plain_memory() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let plain = PlainStore::default();
    build(&plain, &parameters).unwrap();
    let world = SharedTestbed::new(1, parameters.heap_bytes());
    let nodes = ["one", "two"].map(|name| world.join(name));
    SharedHeapSpace::format(&nodes[0], LOCK).unwrap();
    let space = |node| SharedHeapSpace::open(node, LOCK, Durability::Remote).unwrap();
    let built = ObjectGraph::create(space(&nodes[0]), &parameters, DateIndex::All).unwrap();
    build(&built, &parameters).unwrap();
    let graphs = [built, ObjectGraph::open(space(&nodes[1])).unwrap()];
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
                let reading = ObjectGraph::open(space(node).reading()).unwrap();
                assert_eq!(audited(&reading, &parameters), expected, "{operation}");
            }
        }
    }
    for node in &nodes {
        let mut txn = node.begin(netram_rvm::RestoreMode::Restore).unwrap();
        txn.acquire(LOCK, LockMode::Shared).unwrap();
        txn.heap(LOCK).unwrap().check().unwrap();
    }
}

#[test]
fn a_transaction_that_only_reads_changes_nothing() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let world = SharedTestbed::new(1, parameters.heap_bytes());
    let node = world.join("one");
    SharedHeapSpace::format(&node, LOCK).unwrap();
    let space = || SharedHeapSpace::open(&node, LOCK, Durability::Remote).unwrap();
    let store = ObjectGraph::create(space(), &parameters, DateIndex::All).unwrap();
    build(&store, &parameters).unwrap();
    let reading = ObjectGraph::open(space().reading()).unwrap();
    let mut open = reading.begin().unwrap();
    let Err(Oo7Error::Backend(error)) = Operation::T2a.run(&mut open, &parameters, 1) else {
        panic!("it changed something");
    };
    let error = error.downcast_ref::<RangeError>();
    assert!(
        matches!(error, Some(RangeError::NotHeld { lock: Some(0), .. })),
        "{error:?}"
    );
}
