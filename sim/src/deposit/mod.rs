//! Worlds of deposits: owners keep pages at lenders. `RemotePageClient` and `DepositServer` are the ones that
//! ship.
//!
//! Links are late and break, and their last frames may arrive after those of the next link. Lenders die and
//! lose everything, stand still, run out of room, withdraw, or lie. An owner dies and another begins.
//! `docs/design/simulator.md` lists all faults. Rule 14 of `docs/design/failure-model.md` is checked wherever
//! a page comes back, and at quiescence.
//!
//! | module | is |
//! |---|---|
//! | `profile` | parameters of one seed's world |
//! | `owner` | an owner: its page client, its memory, and a program that knows each page's contents |
//! | `gather` | reads of blocks of remote pages |
//! | `lenders` | lenders: deposit servers and their memory |
//! | `net` | connections |
//! | `spill` | an owner's spill file and its disk |
//! | `pressure` | lenders that reclaim slots |
//! | `nemesis` | faults |
//! | `wait_bound` | the longest wait for a page |
//! | `quiescence` | state that must hold once no more faults happen |

mod gather;
mod lenders;
mod nemesis;
mod net;
mod owner;
mod pressure;
mod profile;
mod quiescence;
mod spill;
mod wait_bound;

use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use crate::check;
use crate::coverage::Coverage;
use crate::event::FrameDirection;
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::EventTrace;
use lenders::DepositLender;
use net::DepositConnection;
use owner::DepositOwner;
use profile::DepositProfile;

/// Maximum number of events of one world, as a guard against an endless one.
const EVENTS_MAX: u64 = 2_000_000;
/// Interval at which owners and lenders handle timers.
const TICK: Nanos = Nanos::from_ms(100);
/// A lender's lease of a deposit. Some absences are as long.
const LEASE: Nanos = Nanos::from_ms(4000);

/// An event of this world.
#[derive(Debug)]
enum Event {
    Connected {
        conn: usize,
    },
    Frame {
        conn: usize,
        way: FrameDirection,
    },
    Closed {
        conn: usize,
    },
    Dial {
        arena: usize,
        life: u64,
        lender: usize,
    },
    MachineUp {
        machine: usize,
    },
    Stop {
        machine: usize,
    },
    PressureEnd {
        machine: usize,
        turn: u64,
    },
    ArenaUp {
        arena: usize,
    },
    Program {
        arena: usize,
        life: u64,
    },
    OpenDisk {
        arena: usize,
        life: u64,
    },
    Disk {
        arena: usize,
        life: u64,
        way: FrameDirection,
    },
    Tick,
    Nemesis,
    Mark,
}

/// The whole simulated deposit world.
struct World {
    now: Time,
    queue: EventQueue<Event>,
    rng: Rng,
    coverage: Coverage,
    trace: EventTrace,
    planted: FaultSwitch,
    profile: DepositProfile,
    machines: Vec<DepositLender>,
    arenas: Vec<Option<DepositOwner>>,
    conns: Vec<DepositConnection>,
    /// `[arena][lender]`: frames between the two are blocked until this time.
    blocked: Vec<Vec<Time>>,
    lives: u64,
    /// Whether no more faults happen.
    faults_over: bool,
}

/// Runs the world of one seed until it rests. Returns its fingerprint and its coverage.
pub(crate) fn run(mut rng: Rng, planted: FaultSwitch, mut trace: EventTrace) -> (u64, Coverage) {
    let nature = DepositProfile::draw(&mut rng);
    let now = Time(1_000_000_000);
    trace.tell(now, || format!("{nature:?}"));
    let machines = (0..nature.lenders)
        .map(|index| DepositLender::new(nature.room[index], nature.hostile == Some(index)));
    let mut world = World {
        now,
        queue: EventQueue::default(),
        coverage: Coverage::default(),
        trace,
        planted,
        machines: machines.collect(),
        arenas: (0..nature.arenas).map(|_| None).collect(),
        conns: Vec::new(),
        blocked: vec![vec![Time(0); nature.lenders]; nature.arenas],
        lives: 0,
        faults_over: false,
        profile: nature,
        rng,
    };
    world.coverage.hit("far: worlds");
    for arena in 0..world.arenas.len() {
        world.at(Nanos(1), Event::ArenaUp { arena });
    }
    world.at(TICK, Event::Tick);
    world.plan_nemesis();
    let lasts = world.profile.run_time;
    world.run_for(lasts);
    world.quiesce();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    /// Handles the next event.
    fn step(&mut self) {
        let Some((at, event)) = self.queue.pop() else {
            unreachable!("a mark is always ahead")
        };
        self.trace.events += 1;
        assert!(self.trace.events < EVENTS_MAX, "the world does not end");
        self.now = self.now.max(at);
        match event {
            Event::Connected { conn } => self.on_connected(conn),
            Event::Frame { conn, way } => self.on_frame(conn, way),
            Event::Closed { conn } => self.on_closed(conn),
            Event::Dial { arena, life, lender } => self.dial(arena, life, lender),
            Event::MachineUp { machine } => self.machines[machine].up = true,
            Event::Stop { machine } => self.on_stop(machine),
            Event::PressureEnd { machine, turn } => self.on_pressure_end(machine, turn),
            Event::ArenaUp { arena } => self.start_arena(arena),
            Event::Program { arena, life } => self.on_program(arena, life),
            Event::OpenDisk { arena, life } => self.open_disk(arena, life),
            Event::Disk { arena, life, way } => self.on_disk(arena, life, way),
            Event::Tick => self.on_tick(),
            Event::Nemesis => self.on_nemesis(),
            Event::Mark => (),
        }
    }

    fn on_tick(&mut self) {
        for machine in &mut self.machines {
            machine.end_leases(self.now);
        }
        self.send_reclaims();
        for arena in 0..self.arenas.len() {
            let now = self.now;
            if let Some(arena) = &mut self.arenas[arena] {
                arena.directory_mut().tick(now);
            }
            self.give_up_silent(arena);
            self.settle(arena);
            self.check_waits(arena);
        }
        self.at(TICK, Event::Tick);
    }

    fn run_for(&mut self, span: Nanos) {
        let until = self.now + span;
        self.queue.push(until, Event::Mark);
        while self.now < until {
            self.step();
        }
    }

    fn at(&mut self, delay: Nanos, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    fn latency(&mut self) -> Nanos {
        let (low, high) = self.profile.latency_us;
        Nanos::from_us(self.rng.between(low, high))
    }

    fn fail(&self, what: String) -> ! {
        check::fail(14, what)
    }
}
