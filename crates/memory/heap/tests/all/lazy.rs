//! Opening a large heap touches only its table. Runs in a process of its own, because it counts page faults.

use crate::common::PAGE;
use crate::common::machine::{Machine, TestDirectory};
use netram_heap::{Heap, Ptr};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, SegmentAllocation};

const HEAP_BYTES: u64 = 1 << 30;
/// Pages of the table: eight bytes for each page of the heap.
const TABLE_PAGES: u64 = HEAP_BYTES / PAGE as u64 * 8 / PAGE as u64;

/// Minor page faults of this process.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // Fields follow the process's name, which may contain anything: the first is the state, the eighth the
    // minor faults.
    let fields = stat.rsplit(')').next().unwrap();
    fields.split_whitespace().nth(7).unwrap().parse().unwrap()
}

#[test]
fn opening_a_heap_of_a_gibibyte_reads_only_its_table() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(8 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("heap");
    rvm.create_segment(&path, HEAP_BYTES, SegmentAllocation::Sparse)
        .unwrap();
    let heap = Heap::format(&rvm, rvm.map(&path, 0, 0).unwrap()).unwrap();
    let mut blocks: Vec<Ptr<u8>> = Vec::new();
    for round in 0..500 {
        let mut open = rvm.begin(RestoreMode::NoRestore);
        blocks.push(heap.allocate(&mut open, 1 + round % 3000).unwrap());
        blocks.push(heap.allocate(&mut open, 1 << 20).unwrap());
        open.commit(Durability::Lazy).unwrap();
    }
    drop(heap);
    rvm.truncate().unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    let before = faults();
    let heap = Heap::open(region).unwrap();
    let touched = faults() - before;
    // Beyond the table: the volatile lists, and memory of the test itself.
    assert!(
        touched < TABLE_PAGES * 3,
        "{touched} of {} pages",
        HEAP_BYTES / PAGE as u64
    );
    let report = heap.check().unwrap();
    assert_eq!(report.blocks.len(), blocks.len());
    assert!(blocks.iter().all(|block| heap.block_bytes(*block).is_ok()));
}
