//! Databases on a heap in recoverable memory, on the machine of rvm's own tests.

#[allow(dead_code, reason = "the tests of rvm need more of it")]
#[path = "../../../../../crates/memory/rvm/tests/all/common/mod.rs"]
pub(crate) mod machine;

use machine::{JOURNAL, Machine, MachineStorage};
use netram_heap::Heap;
use netram_oo7::{DateIndex, Graph, OnHeap, Operation, Parameters, Plain, Store, Tally, Work, build};
use netram_proto::port::Durability;
use netram_rvm::{Options, Rvm};

pub(crate) type Memory = Rvm<Tally<Machine>, MachineStorage>;
pub(crate) type HeapGraph<'h> = Graph<OnHeap<'h, Tally<Machine>, MachineStorage>>;

/// Bytes of the log: a database's building fits.
const LOG_BYTES: u64 = 128 << 20;

/// A heap in recoverable memory whose log counts.
pub(crate) struct World {
    pub(crate) rvm: Memory,
    pub(crate) heap: Heap,
}

impl World {
    pub(crate) fn new(parameters: &Parameters) -> World {
        let machine = Machine::new(LOG_BYTES);
        let storage = machine.storage();
        let rvm = Rvm::open(Tally::new(machine), storage, Options::new(JOURNAL)).unwrap();
        rvm.create_segment("heap", parameters.heap_bytes(), Default::default())
            .unwrap();
        let heap = Heap::format(&rvm, rvm.map("heap", 0, 0).unwrap()).unwrap();
        World { rvm, heap }
    }

    pub(crate) fn build(&self, parameters: &Parameters, dates: DateIndex) -> HeapGraph<'_> {
        let store = Graph::create(self.space(), parameters, dates).unwrap();
        build(&store, parameters).unwrap();
        store
    }

    pub(crate) fn space(&self) -> OnHeap<'_, Tally<Machine>, MachineStorage> {
        OnHeap::new(&self.rvm, &self.heap, Durability::Remote)
    }
}

pub(crate) fn plain(parameters: &Parameters) -> Plain {
    let store = Plain::default();
    build(&store, parameters).unwrap();
    store
}

/// One operation in a transaction of its own.
pub(crate) fn run<S: Store>(store: &S, operation: Operation, parameters: &Parameters) -> u64 {
    let mut open = store.begin().unwrap();
    let count = operation.run(&mut open, parameters, 1).unwrap();
    open.commit().unwrap();
    count
}
