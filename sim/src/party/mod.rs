//! Worlds of a database: several processes that write its files, sync them, take journals and lose them,
//! `Party` and `recover` as they ship.
//!
//! A process is killed at any step of disk or journal; while it is in the middle of one, others do something,
//! and may die of it. Calls are refused, syncs fail and leave in the page cache what the disk never got, and
//! the machine loses its power. `docs/simulator.md` says what can happen.
//!
//! | module | is |
//! |---|---|
//! | `machine` | the machine: processes, the journals and their locks, steps at which something happens |
//! | `files` | files with a page cache before the disk |
//! | `beneath` | the disk as a party sees it |
//! | `journal` | a journal as a party sees it |
//! | `program` | what processes do |
//! | `check` | what must be there |

mod beneath;
mod check;
mod files;
mod journal;
mod machine;
mod program;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use netram_proto::planted::Planted;
use netram_proto::port::Durability;
use netram_proto::time::Time;
use netram_sqlite_machine::{Ledger, Party, WORDS};

use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::trace::Trace;
use beneath::Disk;
use journal::Journal;
use machine::{Machine, Shared, as_process};

/// Bytes of a file, about.
const SIZE: usize = 48;
/// Processes at most.
const PROCESSES_MAX: usize = 4;
/// Journals at most.
const SEATS_MAX: usize = 2;
/// The mark of a ledger that counts, here.
const LIFE: u64 = 1;

type Member = Rc<Party<Journal, Disk>>;

/// What one seed's world is like.
#[derive(Debug)]
struct Nature {
    processes: usize,
    seats: usize,
    /// Chances in a thousand, of each turn.
    kills: u64,
    sync_failures: u64,
    refusals: u64,
    journals_break: u64,
}

impl Nature {
    fn draw(rng: &mut Rng) -> Nature {
        Nature {
            processes: rng.between(2, PROCESSES_MAX as u64) as usize,
            seats: rng.between(1, SEATS_MAX as u64) as usize,
            kills: rng.pick(&[0, 20, 60]),
            sync_failures: rng.pick(&[0, 0, 5, 30]),
            refusals: rng.pick(&[0, 0, 10, 60]),
            journals_break: rng.pick(&[0, 5]),
        }
    }
}

/// Everything there is.
struct World {
    machine: Shared,
    words: Arc<[AtomicU64]>,
    members: Vec<Option<Member>>,
    nature: Nature,
    rng: Rng,
    coverage: Coverage,
    trace: Trace,
    planted: Planted,
    now: Time,
}

/// Lets the world of one seed live and come to rest. Its fingerprint, and what happened.
pub(crate) fn run(mut rng: Rng, planted: Planted, mut trace: Trace) -> (u64, Coverage) {
    let nature = Nature::draw(&mut rng);
    trace.tell(Time(0), || format!("{nature:?}"));
    let words: Arc<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let machine = Machine::new(nature.processes, nature.seats, rng.fork());
    let mut world = World {
        machine,
        words,
        members: (0..nature.processes).map(|_| None).collect(),
        nature,
        rng,
        coverage: Coverage::default(),
        trace,
        planted,
        now: Time(0),
    };
    world.coverage.hit("party: worlds");
    world.begin(0);
    for _ in 0..3 {
        for _ in 0..world.rng.between(10, 160) {
            world.turn();
        }
        world.end_all();
    }
    world.rest();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    fn ledger(&self) -> Ledger {
        Ledger::new(Box::new(Arc::clone(&self.words)))
    }

    /// All is on the disk, and nobody is there.
    fn begin(&mut self, next: u64) {
        self.ledger().begin(LIFE, next);
        self.machine.borrow_mut().begin_story();
    }

    fn disk(&self, process: usize) -> Disk {
        Disk::new(&self.machine, process)
    }

    /// A process opens the database. One that had its slot was killed, or has left.
    fn join(&mut self, process: usize) {
        self.machine.borrow_mut().start(process);
        let (disk, ledger) = (self.disk(process), self.ledger());
        let planted = self.planted;
        let joined = as_process(|| Party::join(disk, ledger, process, Durability::Remote, planted));
        if let Some(Ok(party)) = joined {
            self.members[process] = Some(Rc::new(party));
            self.coverage.hit("party: processes that came");
        } else {
            self.machine.borrow_mut().die(process);
        }
    }

    /// Forgets the processes that have died.
    fn bury(&mut self) {
        for (process, member) in self.members.iter_mut().enumerate() {
            if member.is_some() && !self.machine.borrow().processes[process].alive {
                *member = None;
                self.coverage.hit("party: processes killed");
            }
        }
    }

    /// Says what happens, and mixes it into the fingerprint.
    fn tell(&mut self, what: u64, detail: u64, line: impl FnOnce() -> String) {
        self.now = Time(self.now.0 + 1_000_000);
        self.trace.mark(self.now, what, detail);
        self.trace.tell(self.now, line);
    }
}
