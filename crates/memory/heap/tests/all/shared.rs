//! A heap that several nodes change: one value for each copy of the same bytes, under a lock that one node at
//! a time has. The commits of one are stored in the copies of the others, which are notified like nodes of a
//! shared region.

use std::sync::Arc;

use crate::common::machine::{Machine, MachineStorage, TestRvm};
use crate::common::{PAGE, PATH};
use netram_heap::{AllocError, Heap, HeapStats, Ptr, TopActionOutcome, Transact, inspect_shared};
use netram_proto::port::Durability;
use netram_rvm::{EditGuard, Participant, RangeError, Region, RestoreMode, Transaction};
use proptest::prelude::*;

/// Offset of the heap in its region.
const START: usize = 2 * PAGE;

/// A transaction that has the heap's lock: no other node changes the heap before it ends.
struct SoleTransaction(Transaction<Machine, MachineStorage>);

impl Transact for SoleTransaction {
    type Edit<'t> = EditGuard<'t, Machine, MachineStorage>;

    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    fn mode(&self) -> RestoreMode {
        self.0.mode()
    }

    fn admits(&self, _: &Region, _: usize, _: usize) -> Result<(), RangeError> {
        Ok(())
    }

    fn others_in(&self, _: &Region) -> usize {
        0
    }

    fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.0.write(region, offset, bytes)
    }

    fn edit<'t>(&'t mut self, region: &'t Region) -> Self::Edit<'t> {
        self.0.edit(region)
    }

    fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64) {
        self.0.enlist(participant, note);
    }

    fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64> {
        self.0.note_of(participant)
    }

    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError> {
        change(self)?;
        Ok(TopActionOutcome::Within)
    }
}

struct Node {
    rvm: TestRvm,
    heap: Heap,
}

struct SharedHeapFixture {
    nodes: Vec<Node>,
    /// The bytes as of the last commit.
    bytes: Vec<u8>,
}

fn world(nodes: usize, pages: usize) -> SharedHeapFixture {
    let bytes = START + (2 + pages) * PAGE;
    let nodes = (0..nodes).map(|_| {
        let rvm = Machine::new(4 << 20).open().unwrap();
        rvm.create_segment(PATH, bytes as u64, Default::default())
            .unwrap();
        let region = Arc::new(rvm.map(PATH, 0, 0).unwrap());
        let mut open = SoleTransaction(rvm.begin(RestoreMode::Restore));
        Heap::format_in(&mut open, &region, START, usize::MAX).unwrap();
        open.0.commit(Durability::Remote).unwrap();
        let heap = Heap::open_shared(region, START, usize::MAX).unwrap();
        Node { rvm, heap }
    });
    let nodes: Vec<Node> = nodes.collect();
    let bytes = nodes[0].heap.region().read().to_vec();
    SharedHeapFixture { nodes, bytes }
}

impl SharedHeapFixture {
    fn begin(&self, node: usize) -> SoleTransaction {
        SoleTransaction(self.nodes[node].rvm.begin(RestoreMode::Restore))
    }

    fn commit(&mut self, node: usize, open: SoleTransaction) {
        open.0.commit(Durability::Remote).unwrap();
        let new = self.nodes[node].heap.region().read().to_vec();
        let changed = |at: &usize| self.bytes[*at] != new[*at];
        let changed: Vec<usize> = (0..new.len()).filter(changed).collect();
        let ranges: Vec<(usize, usize)> = changed
            .chunk_by(|at, next| at + 1 == *next)
            .map(|run| (run[0], run.len()))
            .collect();
        for (other, told) in self.nodes.iter().enumerate() {
            if other != node {
                for (at, length) in &ranges {
                    let bytes = &new[*at..at + length];
                    told.heap.region().put_back(*at, bytes).unwrap();
                }
                told.heap.note_remote(ranges.iter().copied());
            }
        }
        self.bytes = new;
    }

    /// Checks that all nodes have the same bytes, an intact heap with these blocks, and lists equal to those
    /// of a new opening.
    fn check(&self, mut blocks: Vec<u64>) {
        blocks.sort_unstable();
        for node in &self.nodes {
            let region = node.heap.region();
            assert_eq!(*region.read(), self.bytes[..]);
            let report = node.heap.check().unwrap();
            let found: Vec<u64> = report.blocks.iter().map(|(at, _)| *at).collect();
            assert_eq!(found, blocks);
            assert_eq!(
                report,
                inspect_shared(&self.bytes[START..], START as u64).unwrap()
            );
            let open = SoleTransaction(node.rvm.begin(RestoreMode::Restore));
            node.heap.catch_up(&open).unwrap();
            let copy = Machine::new(4 << 20).open().unwrap();
            copy.create_segment(PATH, region.len() as u64, Default::default())
                .unwrap();
            let copied = copy.map(PATH, 0, 0).unwrap();
            copied.put_back(0, &self.bytes).unwrap();
            let fresh = Heap::open_shared(Arc::new(copied), START, usize::MAX).unwrap();
            assert_eq!(uncounted(&node.heap), uncounted(&fresh));
        }
    }
}

/// Statistics of a heap without its counters.
fn uncounted(heap: &Heap) -> HeapStats {
    HeapStats {
        counts: Default::default(),
        ..heap.statistics().unwrap()
    }
}

/// Action of one transaction.
#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Free(prop::sample::Index),
    Resize(prop::sample::Index, usize),
    Prepare(usize, usize),
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 1..300usize, 2 => 300..6000usize, 2 => 6000..40_000usize]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => bytes().prop_map(Step::Allocate),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => (any::<prop::sample::Index>(), bytes()).prop_map(|(which, bytes)| Step::Resize(which, bytes)),
        1 => (bytes(), 1..40usize).prop_map(|(bytes, count)| Step::Prepare(bytes, count)),
    ]
}

proptest! {
    #[test]
    fn every_node_knows_the_free_blocks_after_changes_of_others(
        history in prop::collection::vec((0..3usize, any::<bool>(), prop::collection::vec(step(), 1..12)), 1..30),
    ) {
        let mut world = world(3, 60);
        let mut blocks: Vec<u64> = Vec::new();
        for (node, commits, steps) in history {
            let mut mine = blocks.clone();
            let mut open = world.begin(node);
            let heap = &world.nodes[node].heap;
            for step in steps {
                match step {
                    Step::Allocate(bytes) => match heap.allocate(&mut open, bytes) {
                        Ok(block) => mine.push(block.offset()),
                        Err(AllocError::NoRoom { .. }) => {}
                        Err(error) => panic!("{error}"),
                    },
                    Step::Free(which) if !mine.is_empty() => {
                        let block = mine.swap_remove(which.index(mine.len()));
                        heap.free(&mut open, Ptr::<u8>::from_offset(block)).unwrap();
                    }
                    Step::Resize(which, bytes) if !mine.is_empty() => {
                        let block = which.index(mine.len());
                        let old = Ptr::<u8>::from_offset(mine[block]);
                        if let Ok(new) = heap.resize(&mut open, old, bytes) {
                            mine[block] = new.offset();
                        }
                    }
                    Step::Prepare(bytes, count) => drop(heap.prepare(&mut open, bytes, count)),
                    Step::Free(_) | Step::Resize(..) => {}
                }
            }
            match commits {
                true => {
                    world.commit(node, open);
                    blocks = mine;
                }
                false => drop(open),
            }
            world.check(blocks.clone());
        }
    }
}

#[test]
fn an_aborted_transaction_frees_the_run_that_it_carved() {
    let world = world(1, 8);
    let heap = &world.nodes[0].heap;
    let before = uncounted(heap);
    let mut open = world.begin(0);
    heap.allocate(&mut open, 100).unwrap();
    assert_ne!(uncounted(heap), before);
    drop(open);
    assert_eq!(uncounted(heap), before);
    world.check(Vec::new());
}

#[test]
fn pointers_count_from_the_regions_beginning_and_may_refer_to_another_heap() {
    let mut world = world(1, 8);
    let mut open = world.begin(0);
    let heap = &world.nodes[0].heap;
    let block = heap.alloc(&mut open, &77_u64).unwrap();
    heap.set_root(&mut open, 3, block).unwrap();
    let elsewhere = Ptr::<u64>::from_offset(16);
    heap.set_root(&mut open, 4, elsewhere).unwrap();
    world.commit(0, open);
    let heap = &world.nodes[0].heap;
    let at = block.offset() as usize;
    assert!(at > START + PAGE, "it lies behind the table");
    assert_eq!(heap.region().get::<u64>(at).unwrap(), 77);
    assert_eq!(heap.get(heap.root::<u64>(3).unwrap()).unwrap(), 77);
    let copy = heap.region().read().to_vec();
    let lens = heap.borrowed_view(&copy);
    assert_eq!(*lens.get(lens.root::<u64>(3).unwrap()).unwrap(), 77);
    assert_eq!((heap.start(), heap.base()), (START, 0));
    // A block of another heap is not a block of this one.
    assert_eq!(heap.root::<u64>(4).unwrap(), elsewhere);
    let refused = heap.get(elsewhere).unwrap_err().to_string();
    assert_eq!(refused, "offset 16 lies outside the heap's blocks");
    assert_eq!(heap.check().unwrap().loose_roots, [4]);
}

#[test]
fn a_table_damaged_by_others_is_refused_until_it_is_repaired() {
    let world = world(2, 8);
    let heap = &world.nodes[1].heap;
    let table = START + PAGE + 5 * 8;
    let old: [u8; 8] = heap.region().get(table).unwrap();
    heap.region().put_back(table, &[9; 8]).unwrap();
    heap.note_remote(std::iter::once((table, 8)));
    for _ in 0..2 {
        let mut open = world.begin(1);
        let refused = heap.allocate(&mut open, 10);
        assert!(matches!(refused, Err(AllocError::Damaged(_))), "{refused:?}");
    }
    heap.region().put_back(table, &old).unwrap();
    heap.allocate(&mut world.begin(1), 10).unwrap();
}
