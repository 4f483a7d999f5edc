//! Worlds of deposits: owners whose pages are at lenders, `Depot` and `Holder` as they ship.
//!
//! Links between them are late and break, and what is in them may arrive behind what the next one brings; lenders die and lose everything,
//! stand still, have no more room, stop with notice, or lie; an owner dies, and another begins. `docs/simulator.md` says what can happen.
//! Rule 14 of `docs/failure-model.md` is looked at wherever a page comes back, and at rest.
//!
//! | module | is |
//! |---|---|
//! | `nature` | what one seed's world is like |
//! | `owner` | a depot, the bytes aside, and a program that knows what each page should be |
//! | `words` | blocks of pages that stay away |
//! | `lenders` | lenders: holders, their memory, and what is left of it |
//! | `net` | connections |
//! | `spill` | an owner's spill file, and its disk |
//! | `pressure` | lenders that want back what they have lent |
//! | `nemesis` | what goes wrong |
//! | `patience` | how long a page may be waited for |
//! | `rest` | what must hold when nothing goes wrong any more |

mod lenders;
mod nature;
mod nemesis;
mod net;
mod owner;
mod patience;
mod pressure;
mod rest;
mod spill;
mod words;

use netram_proto::planted::Planted;
use netram_proto::time::{Span, Time};

use crate::check;
use crate::coverage::Coverage;
use crate::net::Way;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use lenders::Machine;
use nature::Nature;
use net::Conn;
use owner::Arena;

/// Events of one world, as a guard against one that never ends.
const EVENTS_MAX: u64 = 2_000_000;
/// How often owners and lenders look at the time.
const TICK: Span = Span::from_ms(100);
/// A lender keeps a deposit for so long here: absences are as long as that, now and then.
const LEASE: Span = Span::from_ms(4000);

/// Something on the agenda.
#[derive(Debug)]
enum Event {
    Connected { conn: usize },
    Frame { conn: usize, way: Way },
    Closed { conn: usize },
    Dial { arena: usize, life: u64, lender: usize },
    MachineUp { machine: usize },
    Stop { machine: usize },
    Relieve { machine: usize, turn: u64 },
    ArenaUp { arena: usize },
    Program { arena: usize, life: u64 },
    OpenDisk { arena: usize, life: u64 },
    Disk { arena: usize, life: u64, way: Way },
    Tick,
    Nemesis,
    Mark,
}

/// Everything there is.
struct World {
    now: Time,
    queue: Queue<Event>,
    rng: Rng,
    coverage: Coverage,
    trace: Trace,
    planted: Planted,
    nature: Nature,
    machines: Vec<Machine>,
    arenas: Vec<Option<Arena>>,
    conns: Vec<Conn>,
    /// `[arena][lender]`: until when nothing passes.
    blocked: Vec<Vec<Time>>,
    lives: u64,
    /// Nothing goes wrong any more.
    calm: bool,
}

/// Lets the world of one seed live and come to rest. Its fingerprint, and what happened.
pub(crate) fn run(mut rng: Rng, planted: Planted, mut trace: Trace) -> (u64, Coverage) {
    let nature = Nature::draw(&mut rng);
    let now = Time(1_000_000_000);
    trace.tell(now, || format!("{nature:?}"));
    let machines =
        (0..nature.lenders).map(|index| Machine::new(nature.room[index], nature.hostile == Some(index)));
    let mut world = World {
        now,
        queue: Queue::default(),
        coverage: Coverage::default(),
        trace,
        planted,
        machines: machines.collect(),
        arenas: (0..nature.arenas).map(|_| None).collect(),
        conns: Vec::new(),
        blocked: vec![vec![Time(0); nature.lenders]; nature.arenas],
        lives: 0,
        calm: false,
        nature,
        rng,
    };
    world.coverage.hit("far: worlds");
    for arena in 0..world.arenas.len() {
        world.at(Span(1), Event::ArenaUp { arena });
    }
    world.at(TICK, Event::Tick);
    world.plan_nemesis();
    let lasts = world.nature.lasts;
    world.run_for(lasts);
    world.rest();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    /// Lets the next event happen.
    fn step(&mut self) {
        let Some((at, event)) = self.queue.pop() else {
            unreachable!("a mark is always ahead")
        };
        self.trace.events += 1;
        assert!(
            self.trace.events < EVENTS_MAX,
            "the world does not come to an end"
        );
        self.now = self.now.max(at);
        match event {
            Event::Connected { conn } => self.on_connected(conn),
            Event::Frame { conn, way } => self.on_frame(conn, way),
            Event::Closed { conn } => self.on_closed(conn),
            Event::Dial { arena, life, lender } => self.dial(arena, life, lender),
            Event::MachineUp { machine } => self.machines[machine].up = true,
            Event::Stop { machine } => self.on_stop(machine),
            Event::Relieve { machine, turn } => self.on_relieve(machine, turn),
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
        self.ask_back();
        for arena in 0..self.arenas.len() {
            let now = self.now;
            if let Some(arena) = &mut self.arenas[arena] {
                arena.links().tick(now);
            }
            self.give_up_silent(arena);
            self.settle(arena);
            self.looks_at_who_waits(arena);
        }
        self.at(TICK, Event::Tick);
    }

    fn run_for(&mut self, span: Span) {
        let until = self.now + span;
        self.queue.push(until, Event::Mark);
        while self.now < until {
            self.step();
        }
    }

    fn at(&mut self, delay: Span, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    fn latency(&mut self) -> Span {
        let (low, high) = self.nature.latency_us;
        Span::from_us(self.rng.between(low, high))
    }

    fn fail(&self, what: String) -> ! {
        check::fail(14, what)
    }
}
