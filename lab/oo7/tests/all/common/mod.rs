//! Databases on a heap in recoverable memory, with the test storage of rvm's own tests.

#[allow(dead_code, reason = "the tests of rvm need more of it")]
#[path = "../../../../../crates/memory/rvm/tests/all/common/mod.rs"]
pub(crate) mod machine;

use machine::{JOURNAL, Machine, MachineStorage};
use netram_heap::Heap;
use netram_oo7::{
    CountingLog, DateIndex, HeapSpace, ObjectGraph, Oo7Parameters, Oo7Store, Oo7Transaction, Operation,
    PlainStore, build,
};
use netram_proto::port::Durability;
use netram_rvm::{Rvm, RvmOptions};

pub(crate) type CountingMemory = Rvm<CountingLog<Machine>, MachineStorage>;
pub(crate) type HeapGraph<'h> = ObjectGraph<HeapSpace<'h, CountingLog<Machine>, MachineStorage>>;

/// Size of the log in bytes: the building of a database fits.
const LOG_BYTES: u64 = 128 << 20;

/// A heap in recoverable memory with a counting log.
pub(crate) struct HeapTestbed {
    pub(crate) rvm: CountingMemory,
    pub(crate) heap: Heap,
}

impl HeapTestbed {
    pub(crate) fn new(parameters: &Oo7Parameters) -> HeapTestbed {
        let machine = Machine::new(LOG_BYTES);
        let storage = machine.storage();
        let rvm = Rvm::open(CountingLog::new(machine), storage, RvmOptions::new(JOURNAL)).unwrap();
        rvm.create_segment("heap", parameters.heap_bytes(), Default::default())
            .unwrap();
        let heap = Heap::format(&rvm, rvm.map("heap", 0, 0).unwrap()).unwrap();
        HeapTestbed { rvm, heap }
    }

    pub(crate) fn build(&self, parameters: &Oo7Parameters, dates: DateIndex) -> HeapGraph<'_> {
        let store = ObjectGraph::create(self.space(), parameters, dates).unwrap();
        build(&store, parameters).unwrap();
        store
    }

    pub(crate) fn space(&self) -> HeapSpace<'_, CountingLog<Machine>, MachineStorage> {
        HeapSpace::new(&self.rvm, &self.heap, Durability::Remote)
    }
}

pub(crate) fn plain(parameters: &Oo7Parameters) -> PlainStore {
    let store = PlainStore::default();
    build(&store, parameters).unwrap();
    store
}

/// Runs one operation in its own transaction.
pub(crate) fn run<S: Oo7Store>(store: &S, operation: Operation, parameters: &Oo7Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}
