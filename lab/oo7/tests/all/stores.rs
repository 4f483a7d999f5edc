//! The persistent heap beside plain memory: the same counts, the same database, after every operation.

use std::sync::{Mutex, MutexGuard};
use std::thread;

use crate::common::{HeapTestbed, plain, run};
use netram_oo7::operation::mix::{MixClient, OperationMix, perform};
use netram_oo7::{
    DatabaseAudit, DateIndex, ObjectGraph, Oo7Error, Oo7Parameters, Oo7Store, Oo7Transaction, Operation,
    audit, build,
};

fn audited(store: &impl Oo7Store, parameters: &Oo7Parameters) -> DatabaseAudit {
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found
}

/// Runs every operation on both stores, and audits both after each change.
fn agree(parameters: &Oo7Parameters) {
    let world = HeapTestbed::new(parameters);
    let heap = world.build(parameters, DateIndex::All);
    let plain = plain(parameters);
    let built = audited(&plain, parameters);
    assert_eq!(audited(&heap, parameters), built);
    for operation in Operation::ALL {
        let count = run(&plain, *operation, parameters);
        assert_eq!(run(&heap, *operation, parameters), count, "{operation}");
        if operation.changes() {
            let after = audited(&plain, parameters);
            assert_eq!(audited(&heap, parameters), after, "{operation}");
        }
    }
    world.heap.check().unwrap();
}

#[test]
fn tiny_databases_agree() {
    for connections in [3, 6, 9] {
        agree(&Oo7Parameters::of(netram_oo7::DatabaseSize::Tiny, connections));
    }
}

#[test]
fn the_small_database_agrees() {
    agree(&"small-3".parse().unwrap());
}

#[test]
fn several_modules_agree() {
    agree(&"tiny-3".parse::<Oo7Parameters>().unwrap().with_modules(3));
}

#[test]
fn deletion_removes_every_trace_of_an_insertion() {
    let parameters: Oo7Parameters = "tiny-9".parse().unwrap();
    let world = HeapTestbed::new(&parameters);
    let store = world.build(&parameters, DateIndex::All);
    let before = audited(&store, &parameters);
    run(&store, Operation::I, &parameters);
    run(&store, Operation::I, &parameters);
    let between = audited(&store, &parameters);
    assert_eq!(between.composites, before.composites + 20);
    assert_eq!(between.connections, before.connections + 20 * 20 * 9);
    assert_eq!(run(&store, Operation::D, &parameters), 20);
    assert_eq!(audited(&store, &parameters), before);
    // Only unused index nodes and outgrown bags remain: no part, connection or document is left behind.
    let taken = world.heap.statistics().unwrap().bytes_taken;
    for _ in 0..3 {
        run(&store, Operation::I, &parameters);
        run(&store, Operation::D, &parameters);
    }
    assert_eq!(world.heap.statistics().unwrap().bytes_taken, taken);
}

#[test]
fn a_dropped_operation_leaves_nothing() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let world = HeapTestbed::new(&parameters);
    let store = world.build(&parameters, DateIndex::All);
    let before = audited(&store, &parameters);
    for operation in [Operation::T2b, Operation::T3b, Operation::T5Do, Operation::I] {
        let mut open = store.begin().unwrap();
        operation.run(&mut open, &parameters, 1).unwrap();
        drop(open);
        assert_eq!(audited(&store, &parameters), before, "{operation}");
    }
    world.heap.check().unwrap();
}

#[test]
fn plain_memory_refuses_after_half_a_change() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let store = plain(&parameters);
    let mut open = store.begin().unwrap();
    Operation::Q7.run(&mut open, &parameters, 1).unwrap();
    drop(open);
    let mut open = store.begin().unwrap();
    Operation::T2a.run(&mut open, &parameters, 1).unwrap();
    drop(open);
    assert!(matches!(store.begin(), Err(Oo7Error::Poisoned)));
}

#[test]
fn an_incomplete_database_is_not_opened() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let world = HeapTestbed::new(&parameters);
    let missing = |world: &HeapTestbed| match ObjectGraph::open(world.space()) {
        Err(Oo7Error::Missing { why }) => why,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    };
    assert_eq!(missing(&world), "the heap has no root");
    let store = ObjectGraph::create(world.space(), &parameters, DateIndex::All).unwrap();
    assert_eq!(missing(&world), "its building was cut off");
    build(&store, &parameters).unwrap();
    let again = ObjectGraph::open(world.space()).unwrap();
    assert_eq!(audited(&again, &parameters), audited(&store, &parameters));
    let mut open = world.rvm.begin(netram_rvm::RestoreMode::Restore);
    let other = world.heap.alloc(&mut open, &[0u8; 200]).unwrap();
    world.heap.set_root(&mut open, 0, other).unwrap();
    open.commit(netram_proto::port::Durability::Remote).unwrap();
    assert_eq!(missing(&world), "the heap's root is something else");
}

#[test]
fn a_too_small_heap_is_reported() {
    let parameters: Oo7Parameters = "small-3".parse().unwrap();
    let world = HeapTestbed::new(&"tiny-3".parse().unwrap());
    let store = ObjectGraph::create(world.space(), &parameters, DateIndex::All).unwrap();
    let error = build(&store, &parameters).unwrap_err();
    assert!(matches!(error, Oo7Error::Full { .. }), "{error}");
}

/// Several users, one after the other: their choices and counts are the same on both stores.
#[test]
fn the_mix_of_several_users_agrees() {
    let parameters = "tiny-3".parse::<Oo7Parameters>().unwrap().with_modules(3);
    let world = HeapTestbed::new(&parameters);
    let heap = world.build(&parameters, DateIndex::All);
    let plain = plain(&parameters);
    let mix = OperationMix {
        private_read: 30,
        shared_read: 20,
        private_write: 30,
        shared_write: 20,
        operations: 4,
    };
    let clients = |seed| (1..=3).map(move |module| MixClient::new(mix, &parameters, module, seed));
    for (mut ours, mut theirs) in clients(5).zip(clients(5)) {
        for _ in 0..20 {
            let counts = [transact(&heap, &mut ours), transact(&plain, &mut theirs)];
            assert_eq!(counts[0], counts[1]);
            // Each operation visits three composites of twenty parts.
            assert_eq!(counts[0].0, 4 * 60);
        }
    }
    assert_eq!(audited(&heap, &parameters), audited(&plain, &parameters));
}

/// Exchanging x and y twice changes nothing, so the final database does not depend on the order of users.
#[test]
fn users_at_the_same_time_lose_nothing() {
    let parameters = "tiny-3".parse::<Oo7Parameters>().unwrap().with_modules(3);
    let world = HeapTestbed::new(&parameters);
    let heap = world.build(&parameters, DateIndex::All);
    let plain = plain(&parameters);
    let mix = OperationMix {
        private_read: 10,
        shared_read: 10,
        private_write: 40,
        shared_write: 40,
        operations: 2,
    };
    // Without the locks 300 transactions showed the loss in two runs of six; this number in six of six.
    const TRANSACTIONS: usize = 2_000;
    let locks: Vec<Mutex<()>> = (0..3).map(|_| Mutex::new(())).collect();
    thread::scope(|threads| {
        for module in 1..=3 {
            let (heap, locks) = (&heap, &locks);
            threads.spawn(move || {
                let mut client = MixClient::new(mix, &parameters, module, 9);
                for _ in 0..TRANSACTIONS {
                    let mut looking = heap.begin().unwrap();
                    let steps = client.choose(&mut looking).unwrap();
                    drop(looking);
                    let mut modules: Vec<u32> = steps.iter().flat_map(|step| step.modules.clone()).collect();
                    modules.sort_unstable();
                    modules.dedup();
                    let lock = |module: &u32| locks[*module as usize - 1].lock().unwrap();
                    let _held: Vec<MutexGuard<'_, ()>> = modules.iter().map(lock).collect();
                    let mut open = heap.begin().unwrap();
                    for step in &steps {
                        perform(&mut open, step).unwrap();
                    }
                    open.commit().unwrap();
                }
            });
        }
    });
    for module in 1..=3 {
        let mut client = MixClient::new(mix, &parameters, module, 9);
        for _ in 0..TRANSACTIONS {
            transact(&plain, &mut client);
        }
    }
    assert_eq!(audited(&heap, &parameters), audited(&plain, &parameters));
}

/// One transaction of a client: visited parts, operations that wrote, and the modules that they named.
fn transact(store: &impl Oo7Store, client: &mut MixClient) -> (u64, usize, Vec<u32>) {
    let mut open = store.begin().unwrap();
    let steps = client.choose(&mut open).unwrap();
    let counts = steps.iter().map(|step| perform(&mut open, step).unwrap());
    let count = counts.collect::<Vec<u64>>().iter().sum();
    open.commit().unwrap();
    let writes = steps.iter().filter(|step| step.writes).count();
    let modules = steps.iter().flat_map(|step| step.modules.clone()).collect();
    (count, writes, modules)
}
