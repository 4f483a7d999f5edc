//! A heap on the test machine, which can crash.

#[allow(dead_code, reason = "the tests of rvm use the rest")]
#[path = "../../../../rvm/tests/all/common/mod.rs"]
pub(crate) mod machine;

use machine::{Machine, MachineStorage, TestRvm};
use netram_heap::{FreeError, Heap, Ptr};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, Transaction};

pub(crate) type Open = Transaction<Machine, MachineStorage>;

pub(crate) const PAGE: usize = 4096;
/// The heap's segment.
pub(crate) const PATH: &str = "heap";

pub(crate) struct HeapFixture {
    pub(crate) machine: Machine,
    pub(crate) rvm: TestRvm,
    pub(crate) heap: Heap,
}

/// A heap with `pages` pages for blocks.
pub(crate) fn world(pages: usize) -> HeapFixture {
    let machine = Machine::new(4 << 20);
    let rvm = machine.open().unwrap();
    rvm.create_segment(PATH, ((2 + pages) * PAGE) as u64, Default::default())
        .unwrap();
    let heap = Heap::format(&rvm, rvm.map(PATH, 0, 0).unwrap()).unwrap();
    HeapFixture { machine, rvm, heap }
}

impl HeapFixture {
    pub(crate) fn begin(&self) -> Open {
        self.rvm.begin(RestoreMode::Restore)
    }

    pub(crate) fn commit<R>(&self, work: impl FnOnce(&mut Open) -> R) -> R {
        let mut open = self.begin();
        let result = work(&mut open);
        open.commit(Durability::Remote).unwrap();
        result
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Ptr<u8> {
        self.commit(|open| self.heap.allocate(open, bytes)).unwrap()
    }

    pub(crate) fn free(&self, block: Ptr<u8>) -> Result<(), FreeError> {
        self.commit(|open| self.heap.free(open, block))
    }
}
