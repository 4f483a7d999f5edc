//! Promises of the heap and its errors, one test each.

use std::sync::Arc;

use crate::common::machine::Machine;
use crate::common::{HeapFixture, PAGE, PATH, world};
use netram_heap::limit::ROOTS;
use netram_heap::{
    AllocError, BlockAccessError, BlockError, FreeError, Heap, HeapFormatError, HeapOpenError, Ptr, Slice,
    is_heap,
};
use netram_proto::port::Durability;
use netram_rvm::{RangeError, RestoreMode};

#[test]
fn blocks_are_disjoint_aligned_and_large_enough() {
    let world = world(600);
    let mut blocks = Vec::new();
    for bytes in (0..3000)
        .step_by(37)
        .chain([3600, 4096, 5000, 8192, 30_000, 100_000])
    {
        let block = world.allocate(bytes);
        let room = world.heap.block_bytes(block).unwrap();
        assert!(room >= bytes as u64);
        assert!(block.offset().is_multiple_of(16));
        blocks.push((block.offset(), room));
    }
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    let report = world.heap.check().unwrap();
    assert_eq!(report.blocks, blocks);
}

/// Regression: a program that read a block of one byte as a word found bytes of an earlier block.
#[test]
fn the_first_word_of_a_shorter_new_block_is_zero() {
    let world = world(40);
    for bytes in 0..8 {
        let before = world.commit(|open| world.heap.alloc(open, &u64::MAX)).unwrap();
        world.free(Ptr::from_offset(before.offset())).unwrap();
        let block = world.allocate(bytes);
        assert_eq!(block.offset(), before.offset(), "the same slot");
        assert_eq!(world.heap.get(before).unwrap(), 0, "{bytes} bytes");
        world.free(block).unwrap();
    }
}

#[test]
fn a_freed_block_is_reused_only_after_its_transaction_has_committed() {
    let world = world(40);
    for bytes in [100, 5000, 40_000] {
        let block = world.allocate(bytes);
        let mut freeing = world.begin();
        world.heap.free(&mut freeing, block).unwrap();
        let other = world.allocate(bytes);
        assert_ne!(other, block);
        freeing.commit(Durability::Lazy).unwrap();
        assert_eq!(world.allocate(bytes), block, "the lowest offset is used first");
    }
}

#[test]
fn an_abort_restores_freed_blocks_and_frees_allocated_ones() {
    for mode in [RestoreMode::Restore, RestoreMode::NoRestore] {
        let world = world(60);
        for bytes in [100, 5000, 40_000] {
            let kept = world
                .commit(|open| world.heap.alloc_bytes(open, &vec![7; bytes.min(5000)]))
                .unwrap();
            let before = world.heap.check().unwrap();
            let mut open = world.rvm.begin(mode);
            let taken = world.heap.allocate(&mut open, bytes).unwrap();
            world.heap.free(&mut open, kept).unwrap();
            world.heap.resize(&mut open, taken, bytes * 2).unwrap();
            open.abort();
            let after = world.heap.check().unwrap();
            assert_eq!(after.blocks, before.blocks, "{mode:?} {bytes}");
            assert_eq!(world.allocate(bytes), taken);
            let mut found = vec![0; bytes.min(5000)];
            world
                .heap
                .region()
                .read_into(kept.offset() as usize, &mut found)
                .unwrap();
            assert!(found.iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn freeing_an_invalid_pointer_is_refused_with_the_reason() {
    let world = world(40);
    let small = world.allocate(100);
    let large = world.allocate(3 * PAGE);
    let at = |offset: u64| Ptr::<u8>::from_offset(offset);
    let refused = |pointer: Ptr<u8>| match world.free(pointer) {
        Err(FreeError::Block(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Ptr::NULL), BlockError::Null);
    assert_eq!(refused(at(16)), BlockError::Outside { at: 16 });
    assert_eq!(refused(at(u64::MAX)), BlockError::Outside { at: u64::MAX });
    for inside in [
        small.offset() + 16,
        small.offset() + 1,
        large.offset() + 4096,
        large.offset() + 16,
    ] {
        assert_eq!(refused(at(inside)), BlockError::NotABlock { at: inside });
    }
    for block in [small, large] {
        world.free(block).unwrap();
        assert_eq!(refused(block), BlockError::Free { at: block.offset() });
        assert_eq!(
            world.heap.block_bytes(block),
            Err(BlockError::Free { at: block.offset() })
        );
    }
    let mut twice = world.begin();
    let block = world.heap.allocate(&mut twice, 5).unwrap();
    world.heap.free(&mut twice, block).unwrap();
    let again = world.heap.free(&mut twice, block);
    assert_eq!(
        again,
        Err(FreeError::Block(BlockError::Free { at: block.offset() }))
    );
}

#[test]
fn a_block_allocated_by_another_open_transaction_cannot_be_freed() {
    let world = world(40);
    for bytes in [100, 3 * PAGE] {
        let mut first = world.begin();
        let taken = world.heap.allocate(&mut first, bytes).unwrap();
        let mut second = world.begin();
        let busy = FreeError::Busy { at: taken.offset() };
        assert_eq!(world.heap.free(&mut second, taken), Err(busy.clone()));
        assert_eq!(
            world.heap.resize(&mut second, taken, 1).unwrap_err().to_string(),
            busy.to_string()
        );
        first.commit(Durability::Lazy).unwrap();
        world.heap.free(&mut second, taken).unwrap();
    }
}

#[test]
fn an_ended_or_foreign_transaction_changes_nothing() {
    let world = world(40);
    let block = world.allocate(10);
    let before = world.heap.check().unwrap();
    let mut ended = world.begin();
    ended.try_commit(Durability::Remote).unwrap();
    assert_eq!(
        world.heap.allocate(&mut ended, 10),
        Err(AllocError::Range(RangeError::Ended))
    );
    assert_eq!(
        world.heap.free(&mut ended, block),
        Err(FreeError::Range(RangeError::Ended))
    );

    let elsewhere = self::world(3);
    let mut foreign = elsewhere.begin();
    for bytes in [10, 1000, 10_000] {
        assert_eq!(
            world.heap.allocate(&mut foreign, bytes),
            Err(AllocError::Range(RangeError::ForeignRegion))
        );
    }
    assert_eq!(
        world.heap.free(&mut foreign, block),
        Err(FreeError::Range(RangeError::ForeignRegion))
    );
    foreign.commit(Durability::Remote).unwrap();
    assert_eq!(world.heap.check().unwrap(), before);
}

#[test]
fn a_full_heap_reports_its_largest_block_and_merges_freed_ones() {
    let world = world(200);
    for bytes in [1, 16, 100, 700, 3000, 4096, 9000, 100_000] {
        let mut blocks = Vec::new();
        let refused = loop {
            match world.commit(|open| world.heap.allocate(open, bytes)) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        let AllocError::NoRoom { asked, largest } = refused else {
            panic!("{refused}")
        };
        assert_eq!(asked, bytes);
        assert!(!world.heap.has_room(bytes).unwrap());
        let taken = blocks.len() as u64 * world.heap.block_bytes(blocks[0]).unwrap();
        assert!(taken * 10 >= 200 * PAGE as u64 * 6, "{bytes}: {taken}, {largest}");
        for block in blocks {
            world.free(block).unwrap();
        }
        assert!(world.heap.has_room(200 * PAGE).unwrap());
        let whole = world.allocate(200 * PAGE);
        world.free(whole).unwrap();
        let report = world.heap.check().unwrap();
        assert_eq!((report.blocks.len(), report.runs), (0, 0));
        assert_eq!(report.free, [(2 * PAGE as u64, 200 * PAGE as u64)]);
    }
    let refused = world.commit(|open| world.heap.allocate(open, usize::MAX));
    assert!(matches!(
        refused,
        Err(AllocError::NoRoom {
            asked: usize::MAX,
            ..
        })
    ));
}

#[test]
fn a_block_is_resized_in_place_if_possible() {
    let world = world(40);
    let resize = |block: Ptr<u8>, bytes| {
        world
            .commit(|open| world.heap.resize(open, block, bytes))
            .unwrap()
    };
    let block = world
        .commit(|open| world.heap.alloc_bytes(open, &[9; 8192]))
        .unwrap();
    assert_eq!(resize(block, 10 * PAGE), block);
    assert_eq!(world.heap.block_bytes(block), Ok(10 * PAGE as u64));
    assert_eq!(resize(block, PAGE), block);
    assert_eq!(
        world.heap.check().unwrap().free.len(),
        1,
        "released pages are free"
    );

    let wall = world.allocate(PAGE);
    assert_eq!(wall.offset(), block.offset() + PAGE as u64);
    let moved = resize(block, 2 * PAGE);
    assert_ne!(moved, block);
    assert_eq!(world.heap.get(moved.cast::<[u8; 4096]>()).unwrap(), [9; 4096]);
    let small = resize(moved, 100);
    assert_eq!(world.heap.get(small.cast::<[u8; 100]>()).unwrap(), [9; 100]);
    assert_eq!(resize(small, 90), small, "a little less is not worth moving");
    assert_ne!(resize(small, 20), small);
    let counts = world.heap.statistics().unwrap().counts;
    assert_eq!((counts.resized_in_place, counts.resized_by_moving), (3, 3));
}

#[test]
fn typed_access_checks_the_pointer() {
    let world = world(40);
    let heap = &world.heap;
    let (number, list) = world.commit(|open| {
        let number = heap.alloc(open, &7u64).unwrap();
        let list = heap.alloc_slice(open, &[1u32, 2, 3, 4, 5]).unwrap();
        heap.set_root(open, 3, number).unwrap();
        heap.set(open, number, &8).unwrap();
        (number, list)
    });
    assert_eq!(heap.get(heap.root::<u64>(3).unwrap()).unwrap(), 8);
    assert!(heap.root::<u64>(4).unwrap().is_null());
    assert_eq!(
        heap.root::<u64>(ROOTS),
        Err(BlockAccessError::Root {
            number: ROOTS,
            count: ROOTS
        })
    );
    assert_eq!(heap.get_slice(list).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(world.heap.view().get(number.cast::<[u8; 8]>()).unwrap()[0], 8);
    assert_eq!(
        world
            .heap
            .view()
            .slice(Slice::new(list.block().cast::<u8>(), 2))
            .unwrap(),
        [1, 0]
    );

    let small = BlockAccessError::Small {
        at: number.offset(),
        found: 16,
        needed: 17,
    };
    assert_eq!(heap.get(number.cast::<[u8; 17]>()), Err(small));
    let huge = Slice::new(list.block(), u64::MAX);
    assert!(matches!(
        heap.get_slice(huge),
        Err(BlockAccessError::Small { .. })
    ));
    assert!(matches!(
        heap.get(Ptr::<u64>::NULL),
        Err(BlockAccessError::Block(BlockError::Null))
    ));
    world.commit(|open| heap.free(open, number)).unwrap();
    let gone = BlockError::Free { at: number.offset() };
    assert_eq!(heap.get(number), Err(BlockAccessError::Block(gone)));
    assert_eq!(heap.check().unwrap().loose_roots, [3]);
}

#[test]
fn an_edit_declares_the_bytes_it_lends() {
    let world = world(40);
    let heap = &world.heap;
    let list = world
        .commit(|open| heap.alloc_slice(open, &[[0u8; 4]; 100]))
        .unwrap();
    world.commit(|open| {
        let mut edit = heap.edit(open);
        edit.slice_mut(list, 10, 2).unwrap().fill([5; 4]);
        assert_eq!(edit.slice(list).unwrap()[11], [5; 4]);
        let beyond = edit.slice_mut(list, 99, 2);
        assert!(matches!(beyond, Err(BlockAccessError::Small { needed: 404, .. })));
        assert!(edit.slice_mut(list, u64::MAX, 2).is_err());
    });
    let mut aborted = world.begin();
    heap.edit(&mut aborted)
        .slice_mut(list, 10, 1)
        .unwrap()
        .fill([9; 4]);
    aborted.abort();
    world.machine.log_syncs();
    world.machine.crash(5);
    let rvm = world.machine.open().unwrap();
    let heap = Heap::open(rvm.map(PATH, 0, 0).unwrap()).unwrap();
    assert_eq!(
        heap.get_slice(list).unwrap()[9..13],
        [[0; 4], [5; 4], [5; 4], [0; 4]]
    );
}

#[test]
fn free_slots_are_reused_after_an_opening() {
    let world = world(40);
    let blocks: Vec<Ptr<u8>> = (0..500).map(|_| world.allocate(100)).collect();
    for block in blocks.iter().step_by(3) {
        world.free(*block).unwrap();
    }
    let HeapFixture { rvm, heap, .. } = world;
    let before = heap.check().unwrap();
    drop(heap);
    let heap = Heap::open(rvm.map(PATH, 0, 0).unwrap()).unwrap();
    let mut open = rvm.begin(RestoreMode::Restore);
    for block in blocks.iter().step_by(3) {
        assert_eq!(heap.allocate(&mut open, 100), Ok(*block));
    }
    let blocks = heap.check().unwrap().blocks;
    assert_eq!(blocks.len(), 500);
    open.abort();
    assert_eq!(heap.check().unwrap(), before);
    assert_eq!(heap.statistics().unwrap().counts.runs_carved, 0);
}

#[test]
fn a_heap_cannot_be_opened_while_a_transaction_has_ranges_in_it() {
    let HeapFixture { rvm, heap, .. } = world(40);
    drop(heap);
    let region = Arc::new(rvm.map(PATH, 0, 0).unwrap());
    let heap = Heap::open(region.clone()).unwrap();
    let mut open = rvm.begin(RestoreMode::Restore);
    heap.allocate(&mut open, 100).unwrap();
    let busy = HeapOpenError::Busy { transactions: 1 };
    assert_eq!(Heap::open(region.clone()).unwrap_err(), busy);
    open.abort();
    assert_eq!(Heap::open(region).unwrap().check().unwrap().blocks, []);
}

#[test]
fn a_heap_cannot_be_formatted_while_another_transaction_has_ranges_there() {
    let HeapFixture { rvm, heap, .. } = world(40);
    drop(heap);
    let region = Arc::new(rvm.map(PATH, 0, 0).unwrap());
    let heap = Heap::open(region.clone()).unwrap();
    let mut open = rvm.begin(RestoreMode::Restore);
    heap.allocate(&mut open, 3 * PAGE).unwrap();
    let busy = HeapFormatError::Busy { transactions: 1 };
    assert_eq!(Heap::format(&rvm, region.clone()).unwrap_err(), busy);
    let mut other = rvm.begin(RestoreMode::Restore);
    let refused = Heap::format_in(&mut other, &region, 0, usize::MAX);
    assert_eq!(refused, Err(busy.clone()));
    // Ranges of the formatting transaction itself are allowed, those of others are not.
    other.set(&region, 20 * PAGE, &7u64).unwrap();
    let refused = Heap::format_in(&mut other, &region, 0, usize::MAX);
    assert_eq!(refused, Err(busy));
    open.abort();
    Heap::format_in(&mut other, &region, 0, usize::MAX).unwrap();
    other.commit(Durability::Remote).unwrap();
    assert_eq!(Heap::open(region).unwrap().check().unwrap().blocks, []);
}

#[test]
fn statistics_add_up() {
    let world = world(500);
    let blocks: Vec<Ptr<u8>> = (1..200).map(|index| world.allocate(index * 53)).collect();
    for block in blocks.iter().step_by(2) {
        world.free(*block).unwrap();
    }
    let statistics = world.heap.statistics().unwrap();
    let report = world.heap.check().unwrap();
    assert_eq!(statistics.bytes_taken, report.bytes_taken);
    assert_eq!(statistics.bytes_usable, 500 * PAGE as u64);
    let parts = [
        statistics.bytes_taken,
        statistics.bytes_free_pages,
        statistics.bytes_free_slots,
        statistics.bytes_overhead,
    ];
    assert_eq!(parts.iter().sum::<u64>(), statistics.bytes_usable);
    let taken: u64 = statistics
        .classes
        .iter()
        .map(|class| class.slots - class.free)
        .sum();
    assert_eq!(taken + statistics.large_blocks, report.blocks.len() as u64);
    assert_eq!(
        (statistics.counts.allocations, statistics.counts.frees),
        (199, 100)
    );
}

#[test]
fn a_region_without_a_heap_or_too_small_for_one_is_refused() {
    let machine = Machine::new(1 << 16);
    let rvm = machine.open().unwrap();
    for (path, bytes) in [("tiny", 100), ("small", 2 * PAGE as u64), ("empty", 1 << 16)] {
        rvm.create_segment(path, bytes, Default::default()).unwrap();
    }
    for path in ["tiny", "small", "empty"] {
        assert_eq!(
            Heap::open(rvm.map(path, 0, 0).unwrap()).unwrap_err(),
            HeapOpenError::Foreign
        );
    }
    for path in ["tiny", "small"] {
        let refused = Heap::format(&rvm, rvm.map(path, 0, 0).unwrap());
        assert!(matches!(refused, Err(HeapFormatError::Size { .. })));
    }
    Heap::format(&rvm, rvm.map("empty", 0, 0).unwrap()).unwrap();
    let part = rvm.map("empty", 0, 8 * PAGE as u64).unwrap();
    let short = HeapOpenError::Short {
        needed: 1 << 16,
        found: 8 * PAGE as u64,
    };
    assert_eq!(Heap::open(part).unwrap_err(), short);
    assert!(!is_heap(&machine.file("small")));
}

#[test]
fn formatting_again_removes_all_blocks() {
    let machine = Machine::new(4 << 20);
    let rvm = machine.open().unwrap();
    rvm.create_segment(PATH, 32 * PAGE as u64, Default::default())
        .unwrap();
    let region = Arc::new(rvm.map(PATH, 0, 0).unwrap());
    let heap = Heap::format(&rvm, region.clone()).unwrap();
    let empty = heap.check().unwrap();
    let allocate = |heap: &Heap| {
        let mut open = rvm.begin(RestoreMode::Restore);
        let block = heap.allocate(&mut open, 3 * PAGE).unwrap();
        heap.set_root(&mut open, 0, block).unwrap();
        open.commit(Durability::Remote).unwrap();
        block
    };
    allocate(&heap);
    let heap = Heap::format(&rvm, region.clone()).unwrap();
    assert_eq!(heap.check().unwrap(), empty);

    let block = allocate(&heap);
    let mut aborted = rvm.begin(RestoreMode::Restore);
    Heap::format_in(&mut aborted, &region, 0, usize::MAX).unwrap();
    aborted.abort();
    assert_eq!(heap.block_bytes(block), Ok(3 * PAGE as u64));
    let mut committed = rvm.begin(RestoreMode::Restore);
    Heap::format_in(&mut committed, &region, 0, usize::MAX).unwrap();
    committed.commit(Durability::Remote).unwrap();
    assert_eq!(Heap::open(region).unwrap().check().unwrap(), empty);
}

#[test]
fn a_region_can_contain_several_heaps() {
    let machine = Machine::new(4 << 20);
    let rvm = machine.open().unwrap();
    rvm.create_segment(PATH, 64 * PAGE as u64, Default::default())
        .unwrap();
    let region = Arc::new(rvm.map(PATH, 0, 0).unwrap());
    let places = [(16, 20 * PAGE), (30 * PAGE + 48, usize::MAX)];
    let heaps = places.map(|(start, length)| {
        Heap::format_part(&rvm, &region, start, length).unwrap();
        Heap::open_in(region.clone(), start, length).unwrap()
    });
    let refused = Heap::format_part(&rvm, &region, 8, 20 * PAGE);
    assert!(matches!(refused, Err(HeapFormatError::Size { .. })));
    assert_eq!(
        Heap::open_in(region.clone(), usize::MAX, 9).unwrap_err(),
        HeapOpenError::Foreign
    );
    let mut open = rvm.begin(RestoreMode::Restore);
    let pointers = [0, 1].map(|index| {
        let value = heaps[index].alloc(&mut open, &(index as u64 + 5)).unwrap();
        heaps[index].set_root(&mut open, 0, value).unwrap();
        assert!(heaps[index].allocate(&mut open, 9 * PAGE).is_ok());
        value
    });
    open.commit(Durability::Remote).unwrap();
    assert_eq!(
        pointers[0], pointers[1],
        "pointers count from the heap's beginning"
    );
    for (index, heap) in heaps.iter().enumerate() {
        assert_eq!(heap.get(pointers[index]).unwrap(), index as u64 + 5);
        let mut open = rvm.begin(RestoreMode::Restore);
        heap.edit(&mut open)
            .get_mut(pointers[index].cast::<[u8; 8]>())
            .unwrap()[1] = 1;
        open.commit(Durability::Remote).unwrap();
        assert_eq!(
            heap.view().get(pointers[index].cast::<[u8; 8]>()).unwrap()[..2],
            [index as u8 + 5, 1]
        );
        assert_eq!(heap.check().unwrap().blocks.len(), 2);
    }
}

#[test]
fn a_crash_while_formatting_leaves_the_old_heap_no_heap_or_the_new_one() {
    let mut seen = [0; 3];
    for operations in 0.. {
        let world = world(3000);
        let blocks = 40;
        for _ in 0..blocks {
            world.allocate(PAGE);
        }
        world.machine.log_syncs();
        world.machine.crash_after(operations);
        let formatted = Heap::format_part(&world.rvm, world.heap.region(), 0, usize::MAX);
        let done = formatted.is_ok();
        world.machine.crash(operations);
        let rvm = world.machine.open().unwrap();
        let found = match Heap::open(rvm.map(PATH, 0, 0).unwrap()) {
            Ok(heap) => heap.check().unwrap().blocks.len(),
            Err(error) => {
                assert_eq!(error, HeapOpenError::Foreign);
                usize::MAX
            }
        };
        match found {
            0 => seen[0] += 1,
            usize::MAX => seen[1] += 1,
            count => {
                assert_eq!(count, blocks);
                seen[2] += 1;
            }
        }
        if done {
            assert_eq!(found, 0);
            break;
        }
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
}
