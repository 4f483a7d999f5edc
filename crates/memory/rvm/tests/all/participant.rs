//! Participants are notified once how each transaction ended, when its position in the log is certain.

use std::sync::{Arc, Mutex};

use crate::common::Machine;
use netram_proto::port::Durability;
use netram_rvm::{Participant, RestoreMode, RvmCommitError, TransactionOutcome};

#[derive(Default)]
struct Ends(Mutex<Vec<(u64, TransactionOutcome)>>);

impl Participant for Ends {
    fn ended(&self, note: u64, outcome: TransactionOutcome) {
        self.0.lock().unwrap().push((note, outcome));
    }
}

impl Ends {
    fn take(&self) -> Vec<(u64, TransactionOutcome)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn ends() -> (Arc<Ends>, Arc<dyn Participant>) {
    let ends = Arc::new(Ends::default());
    (ends.clone(), ends)
}

#[test]
fn a_participant_is_notified_once_with_the_outcome() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 1 << 16, Default::default()).unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    let (ends, participant) = ends();
    let (_, other) = self::ends();

    let mut committed = rvm.begin(RestoreMode::Restore);
    assert_eq!(committed.note_of(&participant), None);
    committed.enlist(&participant, 1);
    assert_eq!(committed.note_of(&participant), Some(1));
    assert_eq!(committed.note_of(&other), None);
    committed.set(&region, 0, &7u64).unwrap();
    committed.commit(Durability::Lazy).unwrap();
    assert_eq!(ends.take(), [(1, TransactionOutcome::Committed)]);

    let mut aborted = rvm.begin(RestoreMode::Restore);
    aborted.enlist(&participant, 2);
    aborted.set(&region, 0, &8u64).unwrap();
    aborted.abort();
    assert_eq!(ends.take(), [(2, TransactionOutcome::Aborted)]);
    assert_eq!(region.get::<u64>(0).unwrap(), 7);

    let mut empty = rvm.begin(RestoreMode::Restore);
    empty.enlist(&participant, 3);
    empty.enlist(&participant, 4);
    empty.commit(Durability::Remote).unwrap();
    assert_eq!(
        ends.take(),
        [
            (3, TransactionOutcome::Committed),
            (4, TransactionOutcome::Committed)
        ]
    );
}

#[test]
fn a_refused_commit_notifies_only_after_its_abort() {
    let machine = Machine::new(4096);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 1 << 16, Default::default()).unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    let (ends, participant) = ends();

    let mut large = rvm.begin(RestoreMode::NoRestore);
    large.enlist(&participant, 1);
    for at in 0..64 {
        large.set_range(&region, at * 1000, 64).unwrap();
    }
    let refused = large.try_commit(Durability::Remote);
    assert!(
        matches!(refused, Err(RvmCommitError::TooLarge { .. })),
        "{refused:?}"
    );
    assert_eq!(ends.take(), []);
    drop(large);
    assert_eq!(ends.take(), [(1, TransactionOutcome::Aborted)]);
}

#[test]
fn an_unknown_outcome_counts_as_committed() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    let (ends, participant) = ends();

    let mut cut_off = rvm.begin(RestoreMode::Restore);
    cut_off.enlist(&participant, 1);
    cut_off.set(&region, 0, &7u64).unwrap();
    machine.crash_after(1); // The append works, the wait does not.
    let unknown = cut_off.commit(Durability::Remote);
    assert!(
        matches!(unknown, Err(RvmCommitError::Unknown { .. })),
        "{unknown:?}"
    );
    assert_eq!(ends.take(), [(1, TransactionOutcome::Committed)]);
}

#[test]
fn a_region_counts_as_in_use_until_its_participants_have_returned() {
    struct Counter {
        region: netram_rvm::Region,
        counted: Mutex<Vec<usize>>,
    }
    impl Participant for Counter {
        fn ended(&self, _: u64, _: TransactionOutcome) {
            self.counted.lock().unwrap().push(self.region.open_transactions());
        }
    }
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    let counter = Arc::new(Counter {
        region: rvm.map("a", 0, 0).unwrap(),
        counted: Mutex::default(),
    });
    let participant: Arc<dyn Participant> = counter.clone();
    for commits in [false, true] {
        let mut open = rvm.begin(RestoreMode::NoRestore);
        open.enlist(&participant, 0);
        open.set(&counter.region, 0, &7u64).unwrap();
        match commits {
            true => drop(open.commit(Durability::Lazy).unwrap()),
            false => open.abort(),
        }
        assert_eq!(counter.region.open_transactions(), 0);
    }
    assert_eq!(*counter.counted.lock().unwrap(), [1, 1]);
}

#[test]
fn a_participant_may_use_the_regions_and_commit() {
    struct Writer {
        rvm: crate::common::TestRvm,
        region: netram_rvm::Region,
    }
    impl Participant for Writer {
        fn ended(&self, note: u64, _: TransactionOutcome) {
            let mut own = self.rvm.begin(RestoreMode::NoRestore);
            own.set(&self.region, 8, &note).unwrap();
            own.commit(Durability::Lazy).unwrap();
        }
    }
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    let writer = Arc::new(Writer { rvm, region });
    let participant: Arc<dyn Participant> = writer.clone();

    let mut outer = writer.rvm.begin(RestoreMode::Restore);
    outer.enlist(&participant, 5);
    outer.set(&writer.region, 0, &1u64).unwrap();
    let mut other = outer.begin_another(RestoreMode::NoRestore);
    other.set(&writer.region, 16, &2u64).unwrap();
    other.commit(Durability::Lazy).unwrap();
    outer.abort();
    let values: Vec<u64> = (0..3).map(|at| writer.region.get(at * 8).unwrap()).collect();
    assert_eq!(values, [0, 5, 2]);
}

#[test]
fn reads_and_stores_outside_the_region_are_refused() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    region.put_back(4090, b"sixsix").unwrap();
    let mut bytes = [0; 6];
    region.read_into(4090, &mut bytes).unwrap();
    assert_eq!(&bytes, b"sixsix");
    assert!(region.read_into(4091, &mut bytes).is_err());
    assert!(region.put_back(usize::MAX, &bytes).is_err());
}
