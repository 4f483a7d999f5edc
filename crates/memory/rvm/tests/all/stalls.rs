//! Truncation never stalls a commit: while the thread is blocked inside a segment's write or sync, commits go
//! on, and a mapping made meanwhile shows them.

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use crate::common::{Machine, TestDirectory};
use netram_proto::port::{Durability, IoError, StorageFile};
use netram_proto::time::Time;
use netram_rvm::{
    MapError, Placement, RealFile, RealStorage, RegionMemory, RestoreMode, Rvm, RvmOptions,
    SegmentAllocation, SegmentIdentity, SegmentStamp, SegmentStorage, StampId,
};

const LOG_BYTES: u64 = 1 << 20;
/// Long enough for any machine; only a commit stalled by truncation takes this long.
const STALLED: Duration = Duration::from_secs(120);

/// Operation in which the thread is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Sync,
}

/// A gate that blocks segment writes and syncs.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    closed: Option<Operation>,
    /// A thread waits at the closed gate.
    held: bool,
    /// Number of threads that may pass the closed gate.
    admitted: u32,
}

impl Gate {
    fn close(&self, operation: Operation) {
        self.state.lock().unwrap().closed = Some(operation);
    }

    fn open(&self) {
        *self.state.lock().unwrap() = State::default();
        self.changed.notify_all();
    }

    fn pass(&self, operation: Operation) {
        let mut state = self.state.lock().unwrap();
        while state.closed == Some(operation) {
            if state.admitted > 0 {
                state.admitted -= 1;
                state.held = false;
                return;
            }
            state.held = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
    }

    /// Lets the waiting thread pass, and waits until the next one arrives.
    fn admit_one(&self) {
        let mut state = self.state.lock().unwrap();
        state.admitted += 1;
        self.changed.notify_all();
        let next = |state: &mut State| state.admitted > 0 || !state.held;
        drop(self.changed.wait_while(state, next).unwrap());
    }

    fn wait_until_held(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.held).unwrap());
    }
}

/// A real file behind the gate.
struct Gated {
    file: RealFile,
    gate: Option<Arc<Gate>>,
}

impl Gated {
    fn pass(&self, operation: Operation) {
        if let Some(gate) = &self.gate {
            gate.pass(operation);
        }
    }
}

impl StorageFile for Gated {
    fn size(&self) -> Result<u64, IoError> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.pass(Operation::Write);
        self.file.write_at(offset, bytes)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.pass(Operation::Sync);
        self.file.sync()
    }
}

/// Real files, with segments behind the gate; the table is not.
struct GatedStorage {
    real: RealStorage,
    table: Gated,
    gate: Arc<Gate>,
}

impl GatedStorage {
    fn new(directory: &TestDirectory, gate: &Arc<Gate>) -> GatedStorage {
        // The table is opened through a storage of its own, which uses no other file.
        let real = RealStorage::create(&directory.path("unused")).unwrap();
        let path = directory.path("table");
        real.create_segment(
            &path,
            netram_rvm::limit::TABLE_BYTES,
            SegmentAllocation::Preallocated,
        )
        .unwrap();
        let table = Gated {
            file: real.open_segment(&path).unwrap(),
            gate: None,
        };
        GatedStorage {
            real,
            table,
            gate: gate.clone(),
        }
    }
}

impl SegmentStorage for GatedStorage {
    type File = Gated;

    fn name(&self, path: &str) -> Result<String, IoError> {
        self.real.name(path)
    }

    fn create_segment(&self, path: &str, length: u64, allocation: SegmentAllocation) -> Result<(), IoError> {
        self.real.create_segment(path, length, allocation)
    }

    fn open_segment(&self, path: &str) -> Result<Gated, IoError> {
        Ok(Gated {
            file: self.real.open_segment(path)?,
            gate: Some(self.gate.clone()),
        })
    }

    fn map(
        &self,
        file: &Gated,
        offset: u64,
        length: usize,
        placement: Placement,
    ) -> Result<RegionMemory, IoError> {
        self.real.map(&file.file, offset, length, placement)
    }

    fn identity(&self, file: &Gated) -> Result<SegmentIdentity, IoError> {
        self.real.identity(&file.file)
    }

    fn assign_identity(&self, file: &Gated) -> Result<SegmentIdentity, IoError> {
        self.real.assign_identity(&file.file)
    }

    fn stamp(&self, file: &Gated, path: &str) -> Result<Option<SegmentStamp>, IoError> {
        self.real.stamp(&file.file, path)
    }

    fn leave_stamp(&self, file: &Gated, path: &str, stamp: &SegmentStamp) -> Result<bool, IoError> {
        self.real.leave_stamp(&file.file, path, stamp)
    }

    fn draw_stamp(&self) -> Result<StampId, IoError> {
        self.real.draw_stamp()
    }

    fn number(&self, file: &Gated) -> Result<u64, IoError> {
        self.real.number(&file.file)
    }

    fn table(&self) -> &Gated {
        &self.table
    }

    fn now(&self) -> Time {
        self.real.now()
    }
}

fn commits_go_on_while_truncation_is_held(operation: Operation, spool_bytes: usize) {
    let (directory, machine, gate) = (
        TestDirectory::new(),
        Machine::new(LOG_BYTES),
        Arc::new(Gate::default()),
    );
    let options = RvmOptions {
        truncation_threshold_percent: 10,
        spool_bytes,
        ..RvmOptions::new(crate::common::JOURNAL)
    };
    let rvm = Rvm::open(machine.clone(), GatedStorage::new(&directory, &gate), options).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 1 << 20, SegmentAllocation::Sparse)
        .unwrap();
    let a = rvm.map(&path, 0, 0).unwrap();
    rvm.start_truncation().unwrap();
    let (rvm, a) = (Arc::new(rvm), Arc::new(a));
    let commit = |rvm: &Rvm<_, _>, a: &netram_rvm::Region, number: u64, durability| {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction
            .set(a, (number % 500) as usize * 2048, &number)
            .unwrap();
        transaction.commit(durability).unwrap();
    };

    gate.close(operation);
    let mut number = 0;
    // When a tenth of the log is in use the thread wakes, and blocks at the gate.
    while !rvm.wants_truncation() {
        number += 1;
        commit(&rvm, &a, number, Durability::Disk);
    }
    gate.wait_until_held();

    let (done, finished) = mpsc::channel();
    let committer = std::thread::spawn({
        let (rvm, a) = (rvm.clone(), a.clone());
        move || {
            // About half of the log, by every kind of commit, with edits and aborts between.
            for number in number + 1..number + 5000 {
                let kind = [Durability::Remote, Durability::Disk, Durability::Lazy][number as usize % 3];
                commit(&rvm, &a, number, kind);
                let mut aborted = rvm.begin(RestoreMode::Restore);
                aborted.set(&a, 0, &number).unwrap();
                aborted.abort();
            }
            rvm.flush(Durability::Disk).unwrap();
            done.send(()).unwrap();
        }
    });
    let unstalled = finished.recv_timeout(STALLED);
    let held = gate.state.lock().unwrap().held;
    let statistics = rvm.statistics();
    gate.open();
    committer.join().unwrap();
    assert!(
        unstalled.is_ok(),
        "a commit waited for truncation, which was blocked in {operation:?}"
    );
    assert!(held, "truncation was blocked all the time");
    assert_eq!((statistics.full_stalls, statistics.rounds), (0, 0));

    let memory = a.read().to_vec();
    rvm.truncate().unwrap();
    assert!(rvm.statistics().rounds > 0);
    assert!(std::fs::read(&path).unwrap() == memory);
}

#[test]
fn commits_go_on_while_truncation_writes_a_segment() {
    commits_go_on_while_truncation_is_held(Operation::Write, 0);
}

#[test]
fn commits_go_on_while_truncation_syncs_a_segment() {
    commits_go_on_while_truncation_is_held(Operation::Sync, 0);
}

#[test]
fn spooled_commits_go_on_while_truncation_is_blocked() {
    commits_go_on_while_truncation_is_held(Operation::Sync, 64 * 1024);
}

#[test]
fn the_spool_is_logged_between_the_steps_of_a_long_truncation() {
    let (directory, machine, gate) = (
        TestDirectory::new(),
        Machine::new(LOG_BYTES),
        Arc::new(Gate::default()),
    );
    let options = RvmOptions {
        truncation_threshold_percent: 1,
        spool_bytes: 64 * 1024,
        ..RvmOptions::new(crate::common::JOURNAL)
    };
    let rvm = Rvm::open(machine.clone(), GatedStorage::new(&directory, &gate), options).unwrap();
    let regions = ["a", "b", "c"].map(|name| {
        let path = directory.path(name);
        rvm.create_segment(&path, 4096, SegmentAllocation::Sparse)
            .unwrap();
        rvm.map(&path, 0, 0).unwrap()
    });
    let commit = |durability| {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        for region in &regions {
            transaction.set(region, 0, &7u64).unwrap();
        }
        transaction.commit(durability).unwrap();
    };
    let tail = || netram_proto::port::RecordLog::state(&machine).tail;
    rvm.start_truncation().unwrap();
    gate.close(Operation::Sync);
    while !rvm.wants_truncation() {
        commit(Durability::Disk);
    }
    // The first of three syncs, each of which is a step.
    gate.wait_until_held();
    commit(Durability::Lazy);
    let before = tail();
    std::thread::sleep(Duration::from_millis(netram_rvm::limit::SPOOL_MS + 1));
    gate.admit_one();
    let after = tail();
    gate.open();
    assert!(after > before, "logged before the second sync");
}

#[test]
fn a_mapping_shows_commits_made_while_it_waited_for_the_segment() {
    let (directory, machine, gate) = (
        TestDirectory::new(),
        Machine::new(LOG_BYTES),
        Arc::new(Gate::default()),
    );
    let options = RvmOptions::new(crate::common::JOURNAL);
    let rvm = Arc::new(Rvm::open(machine, GatedStorage::new(&directory, &gate), options).unwrap());
    let path = directory.path("a");
    rvm.create_segment(&path, 4096, SegmentAllocation::Sparse)
        .unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    let mut first = rvm.begin(RestoreMode::Restore);
    first.set(&region, 0, &1u64).unwrap();
    first.commit(Durability::Disk).unwrap();
    // The transaction keeps the mapping after its handle is dropped.
    let mut second = rvm.begin(RestoreMode::Restore);
    second.set(&region, 0, &2u64).unwrap();
    drop(region);

    gate.close(Operation::Sync);
    let mapping = std::thread::spawn({
        let rvm = rvm.clone();
        move || rvm.map(&path, 0, 0)
    });
    while !mapping.is_finished() && !gate.state.lock().unwrap().held {
        std::thread::yield_now();
    }
    second.commit(Durability::Disk).unwrap();
    gate.open();
    match mapping.join().unwrap() {
        Ok(region) => assert_eq!(region.read()[..8], 2u64.to_ne_bytes()),
        Err(error) => assert!(matches!(error, MapError::Overlap { .. }), "{error}"),
    }
}
