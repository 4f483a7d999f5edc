//! Random histories against a model: after every crash the memory is a prefix of the commits that includes
//! every acknowledged one, without torn transactions.

use std::collections::BTreeMap;

use crate::common::{Machine, MachineStorage, Random, TestRvm};
use netram_proto::id::Lsn;
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode, RvmCommitError, Transaction};
use proptest::prelude::*;

const SEGMENTS: [(&str, u64); 3] = [("a", 4096), ("b", 9000), ("c", 20_000)];

#[derive(Clone, Debug)]
enum Step {
    Begin {
        restore: bool,
    },
    Change {
        transaction: usize,
        segment: usize,
        offset: usize,
        length: usize,
        how: u8,
        value: u8,
    },
    Commit {
        transaction: usize,
        durability: u8,
    },
    Abort {
        transaction: usize,
    },
    Flush,
    Spool {
        bytes: usize,
    },
    LogSyncs,
    Truncate,
    TruncateSome {
        steps: u8,
    },
    Remap {
        segment: usize,
    },
    Crash {
        seed: u64,
    },
    PlanCrash {
        operations: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let change = (
        0..4usize,
        0..3usize,
        any::<prop::sample::Index>(),
        0..300usize,
        0..5u8,
        any::<u8>(),
    );
    let change = change.prop_map(|(transaction, segment, at, length, how, value)| {
        let size = SEGMENTS[segment].1 as usize;
        let offset = at.index(size);
        let length = length.min(size - offset);
        Step::Change {
            transaction,
            segment,
            offset,
            length,
            how,
            value,
        }
    });
    prop_oneof![
        4 => any::<bool>().prop_map(|restore| Step::Begin { restore }),
        12 => change,
        6 => (0..4usize, 0..4u8).prop_map(|(transaction, durability)| Step::Commit { transaction, durability }),
        2 => (0..4usize).prop_map(|transaction| Step::Abort { transaction }),
        1 => Just(Step::Flush),
        1 => prop_oneof![Just(0), Just(300), Just(1500), Just(1 << 20)].prop_map(|bytes| Step::Spool { bytes }),
        1 => Just(Step::LogSyncs),
        1 => Just(Step::Truncate),
        3 => (1..12u8).prop_map(|steps| Step::TruncateSome { steps }),
        1 => (0..3usize).prop_map(|segment| Step::Remap { segment }),
        1 => any::<u64>().prop_map(|seed| Step::Crash { seed }),
        1 => (0..30u64).prop_map(|operations| Step::PlanCrash { operations }),
    ]
}

type Image = Vec<Vec<u8>>;
type Changes = Vec<(usize, usize, Vec<u8>)>;

/// An open transaction with its state in the model.
struct Open {
    transaction: Transaction<Machine, MachineStorage>,
    restore: bool,
    /// Segment, offset and old values, in the order of declaration.
    ranges: Vec<(usize, usize, Vec<u8>)>,
}

struct ModelRun {
    machine: Machine,
    rvm: Option<TestRvm>,
    regions: Vec<Option<Region>>,
    open: BTreeMap<usize, Open>,
    memory: Image,
    /// Committed and certain values at the last reboot.
    base: Image,
    /// Later commits: the end of each in the log, and its new values.
    commits: Vec<(Lsn, Changes)>,
    /// Commits that are not in the log yet.
    spooled: Vec<Changes>,
    /// End of the log when last observed.
    tail: Lsn,
}

impl ModelRun {
    fn begin() -> ModelRun {
        let machine = Machine::new(16 * 1024);
        let rvm = machine.open().unwrap();
        for (path, length) in SEGMENTS {
            rvm.create_segment(path, length, Default::default()).unwrap();
        }
        let zeros: Image = SEGMENTS
            .iter()
            .map(|(_, length)| vec![0; *length as usize])
            .collect();
        let regions = SEGMENTS
            .iter()
            .map(|(path, _)| Some(rvm.map(path, 0, 0).unwrap()))
            .collect();
        ModelRun {
            machine,
            rvm: Some(rvm),
            regions,
            open: BTreeMap::new(),
            memory: zeros.clone(),
            base: zeros,
            commits: Vec::new(),
            spooled: Vec::new(),
            tail: Lsn(0),
        }
    }

    /// Records appended since the last call, `before` the commit in progress, are the spool's one record.
    fn look(&mut self, before: Option<Lsn>) {
        let tail = netram_proto::port::RecordLog::state(&self.machine).tail;
        let end = before.unwrap_or(tail);
        if end > self.tail {
            let spooled = std::mem::take(&mut self.spooled);
            self.commits
                .extend(spooled.into_iter().map(|changes| (end, changes)));
        }
        self.tail = tail;
    }

    fn rvm(&self) -> &TestRvm {
        self.rvm.as_ref().unwrap()
    }

    fn region(&self, segment: usize) -> &Region {
        self.regions[segment].as_ref().unwrap()
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Begin { restore } => {
                let free = (0..4).find(|number| !self.open.contains_key(number));
                let Some(number) = free else { return };
                let mode = if restore {
                    RestoreMode::Restore
                } else {
                    RestoreMode::NoRestore
                };
                let transaction = self.rvm().begin(mode);
                self.open.insert(
                    number,
                    Open {
                        transaction,
                        restore,
                        ranges: Vec::new(),
                    },
                );
            }
            Step::Change {
                transaction,
                segment,
                offset,
                length,
                how,
                value,
            } => {
                self.change(transaction, segment, offset, length, how, value);
            }
            Step::Commit {
                transaction,
                durability,
            } => self.commit(transaction, durability),
            Step::Abort { transaction } => {
                if let Some(open) = self.open.remove(&transaction) {
                    self.undo(&open);
                    open.transaction.abort();
                }
            }
            Step::Flush => drop(self.rvm().flush(Durability::Remote)),
            Step::Spool { bytes } => self.rvm().set_spool_bytes(bytes),
            Step::LogSyncs if !self.machine.has_crashed() => self.machine.log_syncs(),
            Step::LogSyncs => {}
            Step::Truncate => drop(self.rvm().truncate()),
            Step::TruncateSome { steps } => {
                for _ in 0..steps {
                    let _ = self.rvm().truncate_step();
                }
            }
            Step::Remap { segment } => self.remap(segment),
            Step::Crash { seed } => return self.crash(seed),
            Step::PlanCrash { operations } => self.machine.crash_after(operations),
        }
        self.look(None);
        match self.machine.has_crashed() {
            true => self.crash(step_seed(step)),
            false => self.compare_memory(),
        }
    }

    fn change(&mut self, number: usize, segment: usize, offset: usize, length: usize, how: u8, value: u8) {
        let Some(mut open) = self.open.remove(&number) else {
            return;
        };
        let old = self.memory[segment][offset..offset + length].to_vec();
        open.ranges.push((segment, offset, old));
        let bytes: Vec<u8> = (0..length).map(|at| value.wrapping_add(at as u8)).collect();
        let region = self.regions[segment].as_ref().unwrap();
        match how {
            0 => open.transaction.write(region, offset, &bytes).unwrap(),
            1 => {
                let mut edit = open.transaction.edit(region);
                edit.range_mut(offset, length).unwrap().copy_from_slice(&bytes);
            }
            2 => {
                let mut held = region.exclusive();
                open.transaction.write_in(&mut held, offset, &bytes).unwrap();
                assert!(held[offset..offset + length] == bytes[..]);
            }
            3 if length >= 8 => {
                // Declared as a whole, stored in part.
                open.transaction.set_range(region, offset, length).unwrap();
                open.transaction.set(region, offset, &u64::from(value)).unwrap();
                self.memory[segment][offset..offset + 8].copy_from_slice(&u64::from(value).to_le_bytes());
                self.open.insert(number, open);
                return;
            }
            _ => {
                open.transaction.set_range(region, offset, length).unwrap();
                self.open.insert(number, open);
                return;
            }
        }
        self.memory[segment][offset..offset + length].copy_from_slice(&bytes);
        self.open.insert(number, open);
    }

    fn undo(&mut self, open: &Open) {
        if open.restore {
            for (segment, offset, old) in open.ranges.iter().rev() {
                self.memory[*segment][*offset..*offset + old.len()].copy_from_slice(old);
            }
        }
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
        ][durability as usize];
        let now = |range: &(usize, usize, Vec<u8>)| {
            let (segment, offset, old) = range;
            (
                *segment,
                *offset,
                self.memory[*segment][*offset..*offset + old.len()].to_vec(),
            )
        };
        let changes: Changes = open.ranges.iter().map(now).collect();
        let restore = open.restore;
        let ranges = open.ranges;
        let committed = open.transaction.commit(durability);
        match committed {
            Ok(commit) => match commit.ticket {
                Some(ticket) => {
                    self.look(Some(ticket.lsn));
                    self.commits.push((ticket.end, changes));
                }
                None => {
                    // The commit was spooled, after the log made room for it; or it was empty.
                    assert!(
                        durability == Durability::Lazy || changes.iter().all(|change| change.2.is_empty())
                    );
                    self.look(None);
                    self.spooled.push(changes);
                }
            },
            Err(RvmCommitError::Unknown { lsn, .. }) => {
                // The record is in the log but not acknowledged: recovery may find it.
                self.look(Some(lsn));
                self.commits.push((self.tail, changes));
            }
            Err(error) => {
                self.look(None);
                let too_large = matches!(error, RvmCommitError::TooLarge { .. });
                assert!(self.machine.has_crashed() || too_large, "{error}");
                if restore {
                    for (segment, offset, old) in ranges.iter().rev() {
                        self.memory[*segment][*offset..*offset + old.len()].copy_from_slice(old);
                    }
                }
            }
        }
    }

    fn remap(&mut self, segment: usize) {
        let region = self.regions[segment].take().unwrap();
        let in_use = |open: &Open| {
            open.ranges
                .iter()
                .any(|range| range.0 == segment && !range.2.is_empty())
        };
        match region.unmap() {
            Err((_, region)) => {
                assert!(self.open.values().any(in_use));
                self.regions[segment] = Some(region);
            }
            Ok(()) => {
                assert!(!self.open.values().any(in_use));
                match self.rvm().map(SEGMENTS[segment].0, 0, 0) {
                    Ok(region) => {
                        self.regions[segment] = Some(region);
                        // Exactly the committed bytes, including those of this process.
                        let mut image = self.base.clone();
                        self.commits
                            .iter()
                            .for_each(|(_, changes)| apply(&mut image, changes));
                        self.spooled.iter().for_each(|changes| apply(&mut image, changes));
                        self.memory[segment].clone_from(&image[segment]);
                    }
                    Err(error) => assert!(self.machine.has_crashed(), "{error}"),
                }
            }
        }
    }

    fn compare_memory(&self) {
        for segment in 0..SEGMENTS.len() {
            assert!(
                self.region(segment).read()[..] == self.memory[segment][..],
                "segment {segment}"
            );
        }
    }

    /// Crashes, recovers through further crashes, and compares with every permitted prefix.
    fn crash(&mut self, seed: u64) {
        let acked = self.machine.acked();
        self.open.clear();
        self.regions.clear();
        self.rvm = None;
        // Dropping the `Rvm` logs the spool if the machine still can.
        self.look(None);
        self.spooled.clear();
        self.machine.crash(seed);
        let tail = netram_proto::port::RecordLog::state(&self.machine).tail;
        let mut random = Random(seed);
        for _ in 0..random.below(4) {
            self.machine.crash_after(random.below(12));
            drop(self.machine.open());
            self.machine.crash(random.below(u64::MAX));
        }
        assert_eq!(
            netram_proto::port::RecordLog::state(&self.machine).tail,
            tail,
            "recovery appends nothing"
        );
        let rvm = self.machine.open().unwrap();
        rvm.set_spool_bytes([0, 700, 1 << 20][random.below(3) as usize]);
        self.tail = tail;
        let segments = SEGMENTS
            .iter()
            .map(|(path, _)| Some(rvm.map(path, 0, 0).unwrap()));
        self.regions = segments.collect();
        self.rvm = Some(rvm);

        let survived = self.commits.iter().take_while(|(end, _)| *end <= tail).count();
        let acknowledged = self.commits.iter().filter(|(end, _)| *end <= acked).count();
        assert!(survived >= acknowledged);
        self.commits.truncate(survived);
        let commits = std::mem::take(&mut self.commits);
        commits
            .iter()
            .for_each(|(_, changes)| apply(&mut self.base, changes));
        self.memory.clone_from(&self.base);
        self.compare_memory();
    }
}

fn apply(image: &mut Image, changes: &Changes) {
    for (segment, offset, bytes) in changes {
        image[*segment][*offset..*offset + bytes.len()].copy_from_slice(bytes);
    }
}

fn step_seed(step: &Step) -> u64 {
    let text = format!("{step:?}");
    text.bytes().fold(7, |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    })
}

proptest! {
    #[test]
    fn memory_is_always_a_prefix_of_the_commits(steps in proptest::collection::vec(step(), 1..120)) {
        let mut story = ModelRun::begin();
        steps.iter().for_each(|step| story.run(step));
        story.crash(1);
    }
}
