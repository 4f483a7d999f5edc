//! Random histories against a model: after every crash the heap is intact and contains exactly the blocks of
//! the committed transactions, with their contents.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::machine::{Machine, MachineStorage, Random, TestRvm};
use netram_heap::{AllocError, BlockResizeError, FreeError, Heap, Ptr};
use netram_proto::id::Lsn;
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{RestoreMode, Rvm, RvmCommitError, RvmOptions, Transaction};
use proptest::prelude::*;

const PAGES: u64 = 60;
const LOG_BYTES: u64 = 64 * 1024;
const OPEN_MAX: usize = 3;

#[derive(Clone, Debug)]
enum Act {
    Begin { restore: bool },
    Alloc { open: usize, bytes: usize, value: u8 },
    Fill { open: usize, which: usize, value: u8 },
    Free { open: usize, which: usize },
    Resize { open: usize, which: usize, bytes: usize },
    Commit { open: usize, durability: u8 },
    Abort { open: usize },
    Truncate,
    Reopen,
    Crash { seed: u64 },
    PlanCrash { operations: u64 },
}

fn bytes() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0..200usize, 3 => 200..3000usize, 2 => 3000..9000usize, 1 => 9000..60_000usize]
}

fn act() -> impl Strategy<Value = Act> {
    let open = 0..OPEN_MAX;
    let which = 0..1000usize;
    prop_oneof![
        3 => any::<bool>().prop_map(|restore| Act::Begin { restore }),
        12 => (open.clone(), bytes(), any::<u8>()).prop_map(|(open, bytes, value)| Act::Alloc { open, bytes, value }),
        2 => (open.clone(), which.clone(), any::<u8>()).prop_map(|(open, which, value)| Act::Fill { open, which, value }),
        7 => (open.clone(), which.clone()).prop_map(|(open, which)| Act::Free { open, which }),
        4 => (open.clone(), which, bytes()).prop_map(|(open, which, bytes)| Act::Resize { open, which, bytes }),
        5 => (open.clone(), 0..4u8).prop_map(|(open, durability)| Act::Commit { open, durability }),
        2 => open.prop_map(|open| Act::Abort { open }),
        1 => Just(Act::Truncate),
        1 => Just(Act::Reopen),
        1 => any::<u64>().prop_map(|seed| Act::Crash { seed }),
        1 => (0..40u64).prop_map(|operations| Act::PlanCrash { operations }),
    ]
}

/// Contents of blocks, by offset.
type Blocks = BTreeMap<u64, Vec<u8>>;
/// Contents after a transaction, `None` for freed blocks.
type Changes = BTreeMap<u64, Option<Vec<u8>>>;

/// An open transaction with its state in the model.
struct Open {
    transaction: Transaction<Machine, MachineStorage>,
    changes: Changes,
    restore: bool,
}

struct ModelRun {
    machine: Machine,
    rvm: Option<TestRvm>,
    heap: Option<Heap>,
    open: BTreeMap<usize, Open>,
    /// Committed blocks, as far as this process knows.
    now: Blocks,
    /// Committed and certain blocks at the last reboot.
    base: Blocks,
    /// Later commits: the end of each in the log, and its changes.
    commits: Vec<(Lsn, Changes)>,
    /// Lazy commits in the spool; the next record contains all of them.
    spooled: Vec<Changes>,
    /// End of the log when last observed.
    tail: Lsn,
    spool_bytes: usize,
}

/// Contents of a block: only its beginning is filled, because a large block would not fit a record of this
/// small log.
fn contents(bytes: usize, value: u8) -> Vec<u8> {
    (0..bytes.min(1500))
        .map(|at| value.wrapping_add((at % 251) as u8))
        .collect()
}

fn options(spool_bytes: usize) -> RvmOptions {
    RvmOptions {
        spool_bytes,
        ..Machine::options()
    }
}

fn open(machine: &Machine, spool_bytes: usize) -> TestRvm {
    Rvm::open(machine.clone(), machine.storage(), options(spool_bytes)).unwrap()
}

fn apply(blocks: &mut Blocks, changes: &Changes) {
    for (at, change) in changes {
        match change {
            Some(contents) => drop(blocks.insert(*at, contents.clone())),
            None => drop(blocks.remove(at)),
        }
    }
}

impl ModelRun {
    fn begin(spool_bytes: usize) -> ModelRun {
        let machine = Machine::new(LOG_BYTES);
        let rvm = open(&machine, spool_bytes);
        rvm.create_segment("heap", PAGES * 4096, Default::default())
            .unwrap();
        let heap = Heap::format(&rvm, rvm.map("heap", 0, 0).unwrap()).unwrap();
        rvm.truncate().unwrap();
        let tail = RecordLog::state(&machine).tail;
        ModelRun {
            machine,
            rvm: Some(rvm),
            heap: Some(heap),
            open: BTreeMap::new(),
            now: Blocks::new(),
            base: Blocks::new(),
            commits: Vec::new(),
            spooled: Vec::new(),
            tail,
            spool_bytes,
        }
    }

    fn heap(&self) -> &Heap {
        self.heap.as_ref().unwrap()
    }

    fn run(&mut self, act: &Act) {
        match *act {
            Act::Begin { restore } => {
                let free = (0..OPEN_MAX).find(|number| !self.open.contains_key(number));
                let Some(number) = free else { return };
                let mode = if restore {
                    RestoreMode::Restore
                } else {
                    RestoreMode::NoRestore
                };
                let open = Open {
                    transaction: self.rvm.as_ref().unwrap().begin(mode),
                    changes: BTreeMap::new(),
                    restore,
                };
                self.open.insert(number, open);
            }
            Act::Commit { open, durability } => self.commit(open, durability),
            Act::Abort { open } => {
                if let Some(open) = self.open.remove(&open) {
                    open.transaction.abort();
                }
            }
            Act::Truncate => drop(self.rvm.as_ref().unwrap().truncate()),
            Act::Reopen => self.reopen(),
            Act::Crash { seed } => return self.crash(seed),
            Act::PlanCrash { operations } => self.machine.crash_after(operations),
            _ => {
                let number = match *act {
                    Act::Alloc { open, .. } | Act::Fill { open, .. } => open,
                    Act::Free { open, .. } | Act::Resize { open, .. } => open,
                    _ => unreachable!(),
                };
                if let Some(mut open) = self.open.remove(&number) {
                    self.change(&mut open, act);
                    self.open.insert(number, open);
                }
            }
        }
        self.look_at_log();
        match self.machine.has_crashed() {
            true => self.crash(17),
            false => self.compare(),
        }
    }

    /// A record without a ticket of this test begins with the whole spool.
    fn look_at_log(&mut self) {
        let tail = self.machine_log().tail;
        if tail > self.tail {
            self.commits
                .extend(self.spooled.drain(..).map(|changes| (tail, changes)));
            self.tail = tail;
        }
    }

    /// The blocks that an open transaction sees: its own and those of no other.
    fn visible(&self, open: &Open) -> Vec<(u64, usize)> {
        let elsewhere: BTreeSet<u64> = self
            .open
            .values()
            .flat_map(|other| other.changes.keys().copied())
            .collect();
        let mut seen: Blocks = self.now.clone();
        apply(&mut seen, &open.changes);
        let mine = seen.into_iter().filter(|(at, _)| !elsewhere.contains(at));
        mine.map(|(at, contents)| (at, contents.len())).collect()
    }

    fn change(&mut self, open: &mut Open, act: &Act) {
        let visible = self.visible(open);
        let pick = |which: usize| (!visible.is_empty()).then(|| visible[which % visible.len()]);
        let heap = self.heap();
        match *act {
            Act::Alloc { bytes, value, .. } => match heap.allocate(&mut open.transaction, bytes) {
                Ok(block) => {
                    let bytes = contents(bytes, value);
                    self.store(open, block.offset(), &bytes);
                    let taken = open.changes.insert(block.offset(), Some(bytes));
                    assert!(
                        taken.is_none_or(|old| old.is_none()),
                        "a block was allocated twice"
                    );
                }
                Err(AllocError::NoRoom { asked, .. }) => assert_eq!(asked, bytes),
                Err(error) => self.may_fail(&error),
            },
            Act::Fill { which, value, .. } => {
                // Without restoring, an abort would keep stores to blocks of others.
                let Some((at, bytes)) = pick(which).filter(|(_, bytes)| open.restore && *bytes > 0) else {
                    return;
                };
                let bytes = contents(bytes, value);
                self.store(open, at, &bytes);
                open.changes.insert(at, Some(bytes));
            }
            Act::Free { which, .. } => {
                let Some((at, _)) = pick(which) else { return };
                match heap.free(&mut open.transaction, Ptr::<u8>::from_offset(at)) {
                    Ok(()) => drop(open.changes.insert(at, None)),
                    Err(error) => self.may_fail(&error),
                }
                let again = heap.free(&mut open.transaction, Ptr::<u8>::from_offset(at));
                assert!(matches!(again, Err(FreeError::Block(_))) || self.machine.has_crashed());
            }
            Act::Resize { which, bytes, .. } => {
                let Some((at, old)) = pick(which) else { return };
                let room = heap.block_bytes(Ptr::<u8>::from_offset(at)).unwrap();
                match heap.resize(&mut open.transaction, Ptr::<u8>::from_offset(at), bytes) {
                    Ok(moved) => {
                        let mut values = self.read(moved.offset(), old.min(bytes));
                        assert_eq!(values, self.known(open, at)[..old.min(bytes)]);
                        if contents(bytes, 1).len() > old && (open.restore || moved.offset() != at) {
                            values = contents(bytes, 1);
                            self.store(open, moved.offset(), &values);
                        }
                        if moved.offset() != at {
                            open.changes.insert(at, None);
                            open.changes.insert(moved.offset(), Some(values));
                        } else if values.len() > old {
                            open.changes.insert(at, Some(values));
                        } else if heap.block_bytes(moved).unwrap() != room {
                            // Its contents are unchanged, but other transactions may not use it now.
                            let known = self.known(open, at);
                            open.changes.insert(at, Some(known));
                        }
                    }
                    Err(BlockResizeError::Alloc(AllocError::NoRoom { .. })) => {}
                    Err(error) => self.may_fail(&error),
                }
            }
            _ => unreachable!(),
        }
    }

    fn known(&self, open: &Open, at: u64) -> Vec<u8> {
        let changed = open.changes.get(&at).cloned().flatten();
        changed.unwrap_or_else(|| self.now[&at].clone())
    }

    fn may_fail(&self, error: &dyn std::fmt::Display) {
        assert!(self.machine.has_crashed(), "{error}");
    }

    fn store(&self, open: &mut Open, at: u64, bytes: &[u8]) {
        let region = self.heap().region();
        open.transaction.write(region, at as usize, bytes).unwrap();
    }

    fn read(&self, at: u64, bytes: usize) -> Vec<u8> {
        let mut found = vec![0; bytes];
        self.heap().region().read_into(at as usize, &mut found).unwrap();
        found
    }

    fn commit(&mut self, number: usize, durability: u8) {
        let Some(open) = self.open.remove(&number) else {
            return;
        };
        let durability = [
            Durability::Remote,
            Durability::Disk,
            Durability::Both,
            Durability::Lazy,
        ][usize::from(durability)];
        let committed = open.transaction.commit(durability);
        let own = match &committed {
            Ok(commit) => commit.ticket.map(|ticket| ticket.lsn),
            Err(RvmCommitError::Unknown { lsn, .. }) => Some(*lsn),
            Err(error) => {
                let too_large = matches!(error, RvmCommitError::TooLarge { .. });
                assert!(self.machine.has_crashed() || too_large, "{error}");
                return;
            }
        };
        apply(&mut self.now, &open.changes);
        match own {
            // Its own record, right behind the spool's if there was one.
            Some(lsn) => {
                let before = self.spooled.drain(..).map(|changes| (lsn, changes));
                self.commits.extend(before);
                self.tail = self.machine_log().tail;
                self.commits.push((self.tail, open.changes));
            }
            None if open.changes.is_empty() => {}
            None => {
                // Spooled commits may have been logged to make room.
                self.look_at_log();
                self.spooled.push(open.changes);
            }
        }
    }

    fn machine_log(&self) -> netram_proto::port::LogState {
        RecordLog::state(&self.machine)
    }

    /// Checks that the heap in memory is intact and has the blocks of committed and open transactions.
    fn compare(&self) {
        let mut expected = self.now.clone();
        self.open
            .values()
            .for_each(|open| apply(&mut expected, &open.changes));
        self.compare_with(&expected);
    }

    fn compare_with(&self, expected: &Blocks) {
        let report = self.heap().check().unwrap();
        let found: Vec<u64> = report.blocks.iter().map(|(at, _)| *at).collect();
        let known: Vec<u64> = expected.keys().copied().collect();
        assert_eq!(found, known);
        for ((at, room), contents) in report.blocks.iter().zip(expected.values()) {
            assert!(*room >= contents.len() as u64);
            assert!(self.read(*at, contents.len()) == *contents, "block at {at}");
        }
        let statistics = self.heap().statistics().unwrap();
        if self.open.is_empty() {
            assert_eq!(statistics.bytes_taken, report.bytes_taken);
            let free: u64 = report.free.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(statistics.bytes_free_pages, free);
            assert_eq!(statistics.free_extents, report.free.len() as u64);
        }
    }

    /// Maps and opens the heap again. Open transactions keep the old mapping, so they end first.
    fn reopen(&mut self) {
        self.open.clear();
        self.heap = None;
        let rvm = self.rvm.as_ref().unwrap();
        match rvm.map("heap", 0, 0) {
            Ok(region) => self.heap = Some(Heap::open(region).unwrap()),
            Err(error) => self.may_fail(&error),
        }
    }

    fn crash(&mut self, seed: u64) {
        let acked = self.machine.acked();
        self.open.clear();
        self.heap = None;
        self.rvm = None;
        self.look_at_log();
        self.spooled.clear();
        self.machine.crash(seed);
        let mut random = Random(seed);
        for _ in 0..random.below(3) {
            self.machine.crash_after(random.below(12));
            drop(Rvm::open(
                self.machine.clone(),
                self.machine.storage(),
                options(self.spool_bytes),
            ));
            self.machine.crash(random.below(u64::MAX));
        }
        let tail = self.machine_log().tail;
        self.tail = tail;
        let rvm = open(&self.machine, self.spool_bytes);
        self.heap = Some(Heap::open(rvm.map("heap", 0, 0).unwrap()).unwrap());
        self.rvm = Some(rvm);
        let survived = self.commits.iter().take_while(|(end, _)| *end <= tail).count();
        let acknowledged = self.commits.iter().filter(|(end, _)| *end <= acked).count();
        assert!(survived >= acknowledged);
        for (_, changes) in self.commits.drain(..).take(survived) {
            apply(&mut self.base, &changes);
        }
        self.now = self.base.clone();
        self.compare();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_heap_contains_the_blocks_of_committed_transactions(
        acts in proptest::collection::vec(act(), 1..200),
        spool in prop_oneof![Just(0), Just(2000), Just(16 * 1024)],
    ) {
        let mut story = ModelRun::begin(spool);
        acts.iter().for_each(|act| story.run(act));
        story.crash(1);
    }
}
