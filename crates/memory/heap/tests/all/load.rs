//! A long random load: fragmentation stays low.

use crate::common::machine::{Machine, Random};
use netram_heap::{Heap, Ptr};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;

const HEAP_BYTES: u64 = 8 << 20;
/// Percentage of the heap that requested bytes may take.
const FILL_PERCENT: u64 = 70;
const STEPS: usize = 60_000;

/// Requested size: mostly small, a mixture over all sizes, or mostly large.
fn request(kind: u64, random: &mut Random) -> usize {
    let bytes = match kind {
        0 => 1 + random.below(256),
        1 => {
            let top = 4 + random.below(12);
            1 + random.below(1 << top)
        }
        _ => 4096 + random.below(60_000),
    };
    bytes as usize
}

#[test]
fn a_long_load_is_never_refused_and_wastes_little() {
    for kind in 0..3 {
        let machine = Machine::new(1 << 20);
        let rvm = machine.open().unwrap();
        rvm.create_segment("heap", HEAP_BYTES, Default::default())
            .unwrap();
        let heap = Heap::format(&rvm, rvm.map("heap", 0, 0).unwrap()).unwrap();
        let mut random = Random(kind + 1);
        let mut live: Vec<(Ptr<u8>, usize)> = Vec::new();
        let mut asked = 0;
        for step in 0..STEPS {
            let mut open = rvm.begin(RestoreMode::NoRestore);
            let bytes = request(kind, &mut random);
            while asked + bytes as u64 > HEAP_BYTES * FILL_PERCENT / 100 {
                let victim = random.below(live.len() as u64) as usize;
                let (block, bytes) = live.swap_remove(victim);
                heap.free(&mut open, block).unwrap();
                asked -= bytes as u64;
            }
            // Blocks that this transaction freed are available to the next.
            open.commit(Durability::Lazy).unwrap();
            let mut open = rvm.begin(RestoreMode::NoRestore);
            let block = heap.allocate(&mut open, bytes);
            let block = block.unwrap_or_else(|error| panic!("kind {kind}, step {step}: {error}"));
            open.commit(Durability::Lazy).unwrap();
            live.push((block, bytes));
            asked += bytes as u64;
        }
        let statistics = heap.statistics().unwrap();
        let in_use = statistics.bytes_usable - statistics.bytes_free_pages;
        let ratio = in_use as f64 / asked as f64;
        assert!(
            ratio < 1.40,
            "kind {kind}: {ratio:.3} bytes of pages for each byte asked for"
        );
        assert_eq!(statistics.bytes_taken, heap.check().unwrap().bytes_taken);
        for (block, _) in live {
            let mut open = rvm.begin(RestoreMode::NoRestore);
            heap.free(&mut open, block).unwrap();
            open.commit(Durability::Lazy).unwrap();
        }
        let usable = statistics.bytes_usable as usize;
        assert!(
            heap.has_room(usable).unwrap(),
            "kind {kind}: all free pages are one extent again"
        );
    }
}
