//! Worlds of a database: several processes write its files, sync them, and take and lose journals.
//! `WriterHandle` and `recover` are the ones that ship.
//!
//! A process is killed at any step of disk or journal. In the middle of a step other processes run and may
//! die. Calls are refused, syncs fail and leave bytes in the page cache that the disk never got, and the
//! machine loses power. `docs/design/simulator.md` lists all faults.
//!
//! | module | is |
//! |---|---|
//! | `machine` | the machine: processes, the journals and their locks, steps at which other processes run |
//! | `files` | files with a page cache in front of the disk |
//! | `backing_files` | the disk as a process sees it |
//! | `contents` | the records of a journal |
//! | `journal` | a journal as a process sees it |
//! | `program` | operations of the processes |
//! | `check` | state that must hold after recovery |

mod backing_files;
mod check;
mod contents;
mod files;
mod journal;
mod machine;
mod program;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use netram_proto::planted::FaultSwitch;
use netram_proto::port::Durability;
use netram_proto::time::Time;
use netram_sqlite_machine::{DatabaseWriter, INDEX_WORDS, SharedIndex};

use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::trace::EventTrace;
use backing_files::ProcessDisk;
use journal::DatabaseJournal;
use machine::{DatabaseMachine, MachineHandle, as_process};

/// Approximate size of a file in bytes.
const SIZE: usize = 48;
/// Maximum number of processes.
const PROCESSES_MAX: usize = 4;
/// Maximum number of journals.
const JOURNAL_SLOTS_MAX: usize = 2;
/// Mark of a valid shared index in this world.
const INDEX_MARK: u64 = 1;

type WriterHandle = Rc<DatabaseWriter<DatabaseJournal, ProcessDisk>>;

/// Parameters of one seed's world.
#[derive(Debug)]
struct DatabaseProfile {
    processes: usize,
    journal_slots: usize,
    /// Chances in a thousand, for each turn.
    kills: u64,
    sync_failures: u64,
    refusals: u64,
    journals_break: u64,
}

impl DatabaseProfile {
    fn draw(rng: &mut Rng) -> DatabaseProfile {
        DatabaseProfile {
            processes: rng.between(2, PROCESSES_MAX as u64) as usize,
            journal_slots: rng.between(1, JOURNAL_SLOTS_MAX as u64) as usize,
            kills: rng.pick(&[0, 20, 60]),
            sync_failures: rng.pick(&[0, 0, 5, 30]),
            refusals: rng.pick(&[0, 0, 10, 60]),
            journals_break: rng.pick(&[0, 5]),
        }
    }
}

/// The whole simulated database: machine, processes and random source.
struct World {
    machine: MachineHandle,
    words: Arc<[AtomicU64]>,
    writers: Vec<Option<WriterHandle>>,
    profile: DatabaseProfile,
    rng: Rng,
    coverage: Coverage,
    trace: EventTrace,
    planted: FaultSwitch,
    now: Time,
}

/// Runs the world of one seed until it rests. Returns its fingerprint and its coverage.
pub(crate) fn run(mut rng: Rng, planted: FaultSwitch, mut trace: EventTrace) -> (u64, Coverage) {
    let nature = DatabaseProfile::draw(&mut rng);
    trace.tell(Time(0), || format!("{nature:?}"));
    let words: Arc<[AtomicU64]> = (0..INDEX_WORDS).map(|_| AtomicU64::new(0)).collect();
    let machine = DatabaseMachine::new(nature.processes, nature.journal_slots, rng.fork());
    let mut world = World {
        machine,
        words,
        writers: (0..nature.processes).map(|_| None).collect(),
        profile: nature,
        rng,
        coverage: Coverage::default(),
        trace,
        planted,
        now: Time(0),
    };
    world.coverage.hit("database: worlds");
    world.begin(0);
    for _ in 0..3 {
        for _ in 0..world.rng.between(10, 160) {
            world.run_one_op();
        }
        world.end_all();
    }
    world.quiesce();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    fn shared_index(&self) -> SharedIndex {
        SharedIndex::new(Box::new(Arc::clone(&self.words)))
    }

    /// Begins with everything on the disk and no process running.
    fn begin(&mut self, next: u64) {
        self.shared_index().reset(INDEX_MARK, next);
        self.machine.borrow_mut().begin_versions();
    }

    fn disk(&self, process: usize) -> ProcessDisk {
        ProcessDisk::new(&self.machine, process)
    }

    /// Opens the database in a process slot whose earlier process was killed or has left.
    fn join(&mut self, process: usize) {
        self.machine.borrow_mut().start(process);
        let (disk, index) = (self.disk(process), self.shared_index());
        let planted = self.planted;
        let joined = as_process(|| DatabaseWriter::join(disk, index, process, Durability::Remote, planted));
        if let Some(Ok(writer)) = joined {
            self.writers[process] = Some(Rc::new(writer));
            self.coverage.hit("database: processes that came");
        } else {
            self.machine.borrow_mut().die(process);
        }
    }

    /// Removes the processes that have died.
    fn reap_dead(&mut self) {
        for (process, member) in self.writers.iter_mut().enumerate() {
            if member.is_some() && !self.machine.borrow().processes[process].alive {
                *member = None;
                self.coverage.hit("database: processes killed");
            }
        }
    }

    /// Traces an event and mixes it into the fingerprint.
    fn tell(&mut self, what: u64, detail: u64, line: impl FnOnce() -> String) {
        self.now = Time(self.now.0 + 1_000_000);
        self.trace.mark(self.now, what, detail);
        self.trace.tell(self.now, line);
    }
}
