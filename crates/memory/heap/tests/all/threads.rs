//! Several threads allocate, free and abort at once; the blocks of committed transactions remain.

use std::collections::BTreeMap;

use crate::common::machine::{Machine, Random};
use netram_heap::{AllocError, Heap, Ptr};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, Rvm, RvmOptions};

const THREADS: u64 = 4;
const TRANSACTIONS: u64 = 400;

type Blocks = BTreeMap<u64, (usize, u8)>;

fn work(rvm: &crate::common::machine::TestRvm, heap: &Heap, seed: u64) -> Blocks {
    let mut random = Random(seed);
    let mut committed = Blocks::new();
    for number in 0..TRANSACTIONS {
        let mode = if random.below(2) == 0 {
            RestoreMode::Restore
        } else {
            RestoreMode::NoRestore
        };
        let mut open = rvm.begin(mode);
        let mut mine = committed.clone();
        for _ in 0..random.below(12) {
            if random.below(5) < 2 && !mine.is_empty() {
                let nth = random.below(mine.len() as u64) as usize;
                let at = *mine.keys().nth(nth).unwrap();
                mine.remove(&at);
                heap.free(&mut open, Ptr::<u8>::from_offset(at)).unwrap();
                continue;
            }
            let bytes = match random.below(8) {
                0 => random.below(20_000) as usize + 1,
                _ => random.below(600) as usize + 1,
            };
            let value = (number % 251) as u8;
            match heap.allocate(&mut open, bytes) {
                Ok(block) => {
                    let filled = bytes.min(700);
                    open.write(heap.region(), block.offset() as usize, &vec![value; filled])
                        .unwrap();
                    assert!(mine.insert(block.offset(), (filled, value)).is_none());
                }
                Err(AllocError::NoRoom { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        if random.below(3) > 0 {
            let durability = if random.below(2) == 0 {
                Durability::Lazy
            } else {
                Durability::Remote
            };
            open.commit(durability).unwrap();
            committed = mine;
        }
    }
    committed
}

#[test]
fn the_blocks_that_remain_are_those_each_thread_committed() {
    for seed in 1..6 {
        let machine = Machine::new(1 << 20);
        // In every other run lazy commits are spooled and merged, so that many intermediate states of a block
        // are never logged.
        let options = RvmOptions {
            spool_bytes: if seed % 2 == 0 { 64 * 1024 } else { 0 },
            ..Machine::options()
        };
        let rvm = Rvm::open(machine.clone(), machine.storage(), options).unwrap();
        rvm.create_segment("heap", 4 << 20, Default::default()).unwrap();
        let heap = Heap::format(&rvm, rvm.map("heap", 0, 0).unwrap()).unwrap();
        let results: Vec<Blocks> = std::thread::scope(|scope| {
            let (rvm, heap) = (&rvm, &heap);
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || work(rvm, heap, seed * 100 + thread)))
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        let count: usize = results.iter().map(Blocks::len).sum();
        let expected: Blocks = results.into_iter().flatten().collect();
        assert_eq!(
            expected.len(),
            count,
            "seed {seed}: no block belongs to two threads"
        );
        compare(&heap, &expected, seed);

        rvm.flush(Durability::Disk).unwrap();
        drop((heap, rvm));
        machine.crash(seed);
        let rvm = machine.open().unwrap();
        let heap = Heap::open(rvm.map("heap", 0, 0).unwrap()).unwrap();
        compare(&heap, &expected, seed);
    }
}

fn compare(heap: &Heap, expected: &Blocks, seed: u64) {
    let report = heap.check().unwrap();
    let found: Vec<u64> = report.blocks.iter().map(|(at, _)| *at).collect();
    let known: Vec<u64> = expected.keys().copied().collect();
    assert_eq!(found, known, "seed {seed}");
    for (at, (bytes, value)) in expected {
        let mut contents = vec![0; *bytes];
        heap.region().read_into(*at as usize, &mut contents).unwrap();
        assert!(
            contents.iter().all(|byte| byte == value),
            "seed {seed}, block {at}"
        );
    }
}
