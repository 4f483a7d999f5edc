//! Damaged heaps are refused with an error that names the damage.

use crate::common::machine::Machine;
use crate::common::{HeapFixture, PAGE, PATH, world};
use netram_heap::{
    AllocError, BlockError, BlockResizeError, FreeError, Heap, HeapDamage, HeapOpenError, inspect,
};
use netram_rvm::RestoreMode;

#[test]
fn a_damaged_header_is_refused() {
    assert_eq!(
        damaged(world(3), |bytes| bytes[0] ^= 1),
        Err(HeapOpenError::Foreign)
    );
    for at in 8..36 {
        assert_eq!(
            damaged(world(3), |bytes| bytes[at] ^= 0x10),
            Err(HeapOpenError::Header),
            "byte {at}"
        );
    }
}

#[test]
fn a_damaged_table_is_refused() {
    let descriptor = |page: usize| PAGE + page * 8;
    let world_with_blocks = || {
        let world = world(30);
        world.allocate(3 * PAGE);
        world.allocate(100);
        world
    };
    // The extent is at page 2, the run at page 5.
    for page in [2, 5] {
        for bit in 0..64 {
            let found = damaged(world_with_blocks(), |bytes| {
                bytes[descriptor(page) + bit / 8] ^= 1 << (bit % 8)
            });
            let expected = HeapDamage::Descriptor { page: page as u32 };
            assert_eq!(
                found,
                Err(HeapOpenError::Damaged(expected)),
                "page {page}, bit {bit}"
            );
        }
    }
    let inside = damaged(world_with_blocks(), |bytes| bytes[descriptor(3)] = 1);
    assert_eq!(
        inside,
        Err(HeapOpenError::Damaged(HeapDamage::Descriptor { page: 3 }))
    );
}

#[test]
fn a_block_inside_another_is_refused() {
    let world = world(30);
    let large = world.allocate(8 * PAGE);
    // A descriptor that is valid in itself, but lies inside the extent of another.
    let inner = large.offset() as usize / PAGE + 3;
    let mut other = crate::common::world(30);
    while other.allocate(PAGE).offset() as usize / PAGE != inner {}
    other.rvm.truncate().unwrap();
    let stolen = other.machine.file(PATH)[PAGE + inner * 8..][..8].to_vec();
    other.machine = Machine::new(1 << 16);
    let found = damaged(world, |bytes| {
        bytes[PAGE + inner * 8..][..8].copy_from_slice(&stolen)
    });
    let overlap = HeapDamage::Overlap {
        page: inner as u32,
        by: (large.offset() as usize / PAGE) as u32,
    };
    assert_eq!(found, Err(HeapOpenError::Damaged(overlap)));
}

#[test]
fn a_damaged_run_fails_the_check_and_allocations_from_it() {
    let run = 2 * PAGE;
    let world_with_run = || {
        let world = world(30);
        world.allocate(100);
        world
    };
    for at in 0..16 {
        let found = damaged(world_with_run(), |bytes| bytes[run + at] ^= 4);
        assert_eq!(
            found,
            Err(HeapOpenError::Damaged(HeapDamage::Run { page: 2 })),
            "byte {at}"
        );
    }
    let found = damaged(world_with_run(), |bytes| bytes[run + 16 + 5] ^= 4);
    assert_eq!(
        found,
        Err(HeapOpenError::Damaged(HeapDamage::Slot { page: 2, slot: 5 }))
    );

    let HeapFixture { machine, rvm, heap } = world_with_run();
    drop(heap);
    rvm.truncate().unwrap();
    machine.change_file(PATH, |bytes| bytes[run + 4] ^= 4);
    let heap = Heap::open(rvm.map(PATH, 0, 0).unwrap()).unwrap();
    let mut open = rvm.begin(RestoreMode::Restore);
    let refused = heap.allocate(&mut open, 100);
    assert_eq!(refused, Err(AllocError::Damaged(HeapDamage::Run { page: 2 })));
    assert!(
        heap.allocate(&mut open, PAGE).is_ok(),
        "other blocks can be allocated"
    );
}

#[test]
fn freeing_a_slot_that_a_stray_store_marked_as_taken_is_refused() {
    let world = world(30);
    let block = world.allocate(100);
    let other = world.allocate(100);
    world.free(other).unwrap();
    // The run is at page 2; the block is in its first slot, the other in its second.
    let state = 2 * PAGE + 16 + 1;
    let region = world.heap.region();
    let taken: u8 = region.get(state - 1).unwrap();
    region.put_back(state, &[taken]).unwrap();
    let damage = HeapDamage::Slot { page: 2, slot: 1 };
    let damaged = FreeError::Block(BlockError::Damaged(damage));
    assert_eq!(world.free(other), Err(damaged.clone()));
    let resized = world.commit(|open| world.heap.resize(open, other, 1000));
    assert_eq!(resized.unwrap_err(), BlockResizeError::Free(damaged));
    world.free(block).unwrap();
}

/// Changes the file as truncation would leave it, and opens it.
fn damaged(world: HeapFixture, change: impl FnOnce(&mut Vec<u8>)) -> Result<(), HeapOpenError> {
    let HeapFixture { machine, rvm, heap } = world;
    drop(heap);
    rvm.truncate().unwrap();
    machine.change_file(PATH, change);
    let opened = Heap::open(rvm.map(PATH, 0, 0).unwrap());
    let inspected = inspect(&machine.file(PATH));
    match opened {
        Err(error) => {
            assert_eq!(inspected, Err(error));
            Err(error)
        }
        // Opening reads no run, but the check does.
        Ok(heap) => {
            let checked = heap.check();
            assert_eq!(checked, inspected);
            checked.map(drop)
        }
    }
}
