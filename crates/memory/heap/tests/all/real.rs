//! Real files, private mappings, and pointers that stay valid wherever the segment is mapped.

use crate::common::machine::{Machine, TestDirectory};
use netram_heap::{BlockAccessError, Heap, Ptr, Slice};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, SegmentAllocation};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A list element, stored as it is in memory.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct Person {
    next: Ptr<Person>,
    name: Slice<u8>,
    born: u64,
}

const PEOPLE: [(&str, u64); 4] = [
    ("Ada", 1815),
    ("Grace", 1906),
    ("Edsger", 1930),
    ("Barbara", 1939),
];

#[test]
fn a_list_reads_the_same_at_another_address_and_after_a_crash() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("heap");
    rvm.create_segment(&path, 1 << 20, SegmentAllocation::Sparse)
        .unwrap();
    let heap = Heap::format(&rvm, rvm.map(&path, 0, 0).unwrap()).unwrap();
    for (name, born) in PEOPLE {
        let mut open = rvm.begin(RestoreMode::Restore);
        let name = heap.alloc_slice(&mut open, name.as_bytes()).unwrap();
        let next = heap.root(0).unwrap();
        let person = heap.alloc(&mut open, &Person { next, name, born }).unwrap();
        heap.set_root(&mut open, 0, person).unwrap();
        open.commit(Durability::Remote).unwrap();
    }
    let first = heap.region().as_ptr().addr();
    // At another address, with the records still in the log: mapping applies them.
    let elsewhere = first.wrapping_sub(1 << 32);
    drop(heap);
    let heap = Heap::open(rvm.map_at(&path, 0, 0, elsewhere).unwrap()).unwrap();
    assert_eq!(heap.region().as_ptr().addr(), elsewhere);
    assert_eq!(read(&heap), PEOPLE.map(|(name, born)| (name.to_owned(), born)));

    let mut lost = rvm.begin(RestoreMode::NoRestore);
    let person: Ptr<Person> = heap.root(0).unwrap();
    heap.edit(&mut lost).get_mut(person).unwrap().born = 0;
    drop((lost, heap, rvm));
    machine.crash(3);
    let rvm = directory.open(&machine).unwrap();
    let heap = Heap::open(rvm.map(&path, 0, 0).unwrap()).unwrap();
    assert_eq!(read(&heap), PEOPLE.map(|(name, born)| (name.to_owned(), born)));
    assert_eq!(heap.check().unwrap().blocks.len(), 2 * PEOPLE.len());
}

/// The people in the order of insertion.
fn read(heap: &Heap) -> Vec<(String, u64)> {
    let view = heap.view();
    let mut people = Vec::new();
    let mut next: Ptr<Person> = view.root(0).unwrap();
    while !next.is_null() {
        let person = view.get(next).unwrap();
        let name = view.slice(person.name).unwrap();
        people.push((String::from_utf8(name.to_vec()).unwrap(), person.born));
        next = person.next;
    }
    people.reverse();
    people
}

#[test]
fn an_unaligned_value_can_be_copied_but_not_borrowed() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("heap");
    rvm.create_segment(&path, 1 << 20, SegmentAllocation::Sparse)
        .unwrap();
    let heap = Heap::format(&rvm, rvm.map(&path, 0, 0).unwrap()).unwrap();
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug, PartialEq)]
    #[repr(C, align(64))]
    struct Wide([u8; 64]);
    let mut open = rvm.begin(RestoreMode::Restore);
    let blocks: Vec<Ptr<Wide>> = (0..4)
        .map(|_| heap.alloc(&mut open, &Wide([3; 64])).unwrap())
        .collect();
    let lent = blocks
        .iter()
        .filter(|block| heap.view().get(**block).is_ok())
        .count();
    let aligned = blocks
        .iter()
        .filter(|block| block.offset().is_multiple_of(64))
        .count();
    assert_eq!(lent, aligned);
    for block in &blocks {
        assert_eq!(heap.get(*block).unwrap(), Wide([3; 64]));
    }
    let odd = blocks
        .iter()
        .find(|block| !block.offset().is_multiple_of(64))
        .unwrap();
    let refused = heap.edit(&mut open).get_mut(*odd).map(|_| ());
    assert_eq!(refused, Err(BlockAccessError::Unaligned { at: odd.offset() }));
}
