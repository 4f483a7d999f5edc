//! Worlds in which several nodes share a region: the machines of a shared region (`Server`, `Node`) together with those of the nodes'
//! journals (`Writer`, `Recovery`, `assemble`, `Member`, `Forget`), which are all the ones that ship.
//!
//! Machines with processes of a node, lenders, and the server; between them links that are late and break, and a clock each. A
//! process dies, its machine loses power, anybody stands still. `docs/simulator.md` says what can happen; the rules are those of
//! `docs/shared.md`.
//!
//! | module | is |
//! |---|---|
//! | `nature`, `story`, `nemesis` | what one seed's world is like, what it is about, what goes wrong |
//! | `bytes` | a region of words, spans, records |
//! | `process`, `program` | a node's process, and what the program in it does |
//! | `journal`, `left` | its journal; the journals of processes before |
//! | `server` | the server's process, its disk, its readings |
//! | `lenders`, `net`, `asker` | lenders, connections to them, whoever seals and reads |
//! | `pipe` | links between nodes and server; records straight from node to node |
//! | `book`, `check`, `rest` | what truly happened, the rules, and what must hold at rest |

mod asker;
mod book;
mod bytes;
mod check;
mod journal;
mod left;
mod lenders;
mod nature;
mod nemesis;
mod net;
mod pipe;
mod process;
mod program;
mod rest;
mod server;
mod story;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::journal::View;
use netram_proto::planted::Planted;
use netram_proto::time::{Span, Time};
use netram_shared_machine::server::{Closed, Session, Standing};

use crate::coverage::Coverage;
use crate::disk::{Disk, DiskFaults};
use crate::net::Way;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::Trace;
use asker::Asker;
use book::Book;
pub use check::REGION_RULES;
use lenders::Machine;
use nature::Nature;
use net::Conn;
use pipe::Pipe;
use process::Slot;
use server::Host;

/// Events of one world, as a guard against one that never ends.
const EVENTS_MAX: u64 = 3_000_000;

/// Something on the agenda.
#[derive(Debug)]
enum Event {
    Connected { conn: usize },
    Frame { conn: usize, way: Way },
    Closed { conn: usize },
    Asks { asker: usize },
    MachineUp { machine: usize },
    SlotUp { slot: usize },
    Tick { slot: usize, life: u64 },
    Program { slot: usize, life: u64 },
    LastWord { slot: usize, life: u64 },
    Flushed { slot: usize, life: u64 },
    ViewStored { slot: usize, life: u64 },
    Linked { session: Session },
    Up { session: Session },
    Down { session: Session },
    Unlinked { session: Session },
    HungUp { session: Session, closed: Closed },
    Hint { slot: usize, bytes: Vec<u8> },
    ServerUp,
    ServerTick { boot: u32 },
    ServerFlushed { boot: u32, count: usize },
    Nemesis,
    Story,
    Mark,
}

/// A machine's clock.
#[derive(Clone, Copy, Debug)]
struct Clock {
    start: u64,
    permille: u64,
}

impl Clock {
    fn draw(rng: &mut Rng, drift: u64) -> Clock {
        Clock {
            start: rng.between(1, 1 << 40),
            permille: rng.between(1000 - drift, 1000 + drift),
        }
    }

    fn local(&self, now: Time) -> Time {
        Time(self.start + now.0 / 1000 * self.permille)
    }
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
    conns: Vec<Conn>,
    /// `[host][lender]`: until when nothing passes. The last host is the server.
    blocked: Vec<Vec<Time>>,
    askers: Vec<Option<Asker>>,
    /// Journals that were removed although not all lenders could be told, or nobody knew whether they may be.
    untold: BTreeSet<JournalId>,
    server: Host,
    slots: Vec<Slot>,
    pipes: BTreeMap<Session, Pipe>,
    sessions: u64,
    lives: u64,
    incarnations: u64,
    /// Since when nothing goes wrong, and nothing begins any more.
    calm_since: Option<Time>,
    book: Book,
}

/// Lets the region of one seed live and come to rest. Its fingerprint, and what happened.
pub(crate) fn run(mut rng: Rng, planted: Planted, trace: Trace) -> (u64, Coverage) {
    let nature = Nature::draw(&mut rng);
    let lasts = nature.lasts;
    let mut world = World::new(rng, nature, planted, trace);
    world.coverage.hit("region: worlds");
    world.start_server();
    for slot in 0..world.slots.len() {
        let ms = world.rng.pick(&[0, 0, 30, 300]);
        world.after_ms(ms, Event::SlotUp { slot });
    }
    world.plan_nemesis();
    world.plan_story();
    world.run_for(lasts);
    world.rest();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    fn new(mut rng: Rng, nature: Nature, planted: Planted, mut trace: Trace) -> World {
        let now = Time(1_000_000_000);
        trace.tell(now, || format!("{nature:?}"));
        let drift = nature.drift_permille;
        let slots = (0..nature.nodes).map(|_| {
            let mut disk = Disk::new(rng.fork());
            disk.faults = DiskFaults {
                survives_permille: nature.survives_permille,
                ..DiskFaults::default()
            };
            Slot::new(Rc::new(RefCell::new(disk)), Clock::draw(&mut rng, drift))
        });
        let slots: Vec<Slot> = slots.collect();
        let roomy = rng.pick(&[0, 0, 300, 1000]);
        let machines = (0..nature.lenders).map(|index| {
            let incarnation = Incarnation(index as u64 + 1);
            Machine::new(index, incarnation, rng.chance(roomy))
        });
        let machines: Vec<Machine> = machines.collect();
        World {
            now,
            queue: Queue::default(),
            coverage: Coverage::default(),
            trace,
            planted,
            machines,
            conns: Vec::new(),
            blocked: vec![vec![Time(0); nature.lenders]; nature.nodes + 1],
            askers: Vec::new(),
            untold: BTreeSet::new(),
            server: Host::new(Clock::draw(&mut rng, drift)),
            slots,
            pipes: BTreeMap::new(),
            sessions: 0,
            lives: 0,
            incarnations: nature.lenders as u64,
            calm_since: None,
            book: Book::default(),
            nature,
            rng,
        }
    }

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
        if let Some(until) = self.standing_still(&event) {
            return self.queue.push(until, event);
        }
        match event {
            Event::Connected { conn } => self.on_connected(conn),
            Event::Frame { conn, way } => self.on_frame(conn, way),
            Event::Closed { conn } => self.on_closed(conn),
            Event::Asks { asker } => self.on_asks(asker),
            Event::MachineUp { machine } => self.start_machine(machine),
            Event::SlotUp { slot } => self.start_process(slot),
            Event::Tick { slot, life } => self.on_tick(slot, life),
            Event::Program { slot, life } => self.on_program(slot, life),
            Event::LastWord { slot, life } => self.on_last_word(slot, life),
            Event::Flushed { slot, life } if self.is_life(slot, life) => self.on_flushed(slot),
            Event::ViewStored { slot, life } if self.is_life(slot, life) => self.on_view_stored(slot),
            Event::Flushed { .. } | Event::ViewStored { .. } => (),
            Event::Linked { session } => self.on_linked(session),
            Event::Up { session } => self.on_up(session),
            Event::Down { session } => self.on_down(session),
            Event::Unlinked { session } => self.on_unlinked(session),
            Event::HungUp { session, closed } => self.on_hung_up(session, closed),
            Event::Hint { slot, bytes } => self.on_hint(slot, &bytes),
            Event::ServerUp => self.start_server(),
            Event::ServerTick { boot } => self.on_server_tick(boot),
            Event::ServerFlushed { boot, count } => self.on_server_flushed(boot, count),
            Event::Nemesis => self.on_nemesis(),
            Event::Story => self.on_story(),
            Event::Mark => (),
        }
    }

    /// Until when whoever an event is for stands still.
    fn standing_still(&self, event: &Event) -> Option<Time> {
        let until = match event {
            Event::Hint { slot, .. }
            | Event::Tick { slot, .. }
            | Event::Program { slot, .. }
            | Event::Flushed { slot, .. }
            | Event::ViewStored { slot, .. } => self.slots[*slot].paused_until,
            Event::Linked { session } => self.slots[self.pipe_slot(*session)?].paused_until,
            Event::Connected { conn } | Event::Closed { conn } => self.paused_until(self.conns[*conn].host()),
            Event::ServerTick { .. } | Event::ServerFlushed { .. } => self.server.paused_until,
            _ => return None,
        };
        (until > self.now).then_some(until)
    }

    fn is_life(&mut self, slot: usize, life: u64) -> bool {
        self.slots[slot].alive(life).is_some()
    }

    fn paused_until(&self, host: usize) -> Time {
        match self.slots.get(host) {
            Some(slot) => slot.paused_until,
            None => self.server.paused_until,
        }
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

    fn after_ms(&mut self, ms: u64, event: Event) {
        self.at(Span(Span::from_ms(ms).0 + 1), event);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    /// What a slot's machine takes for the time.
    fn local(&self, slot: usize) -> Time {
        let Slot { clock, behind, .. } = &self.slots[slot];
        clock.local(Time(self.now.0.saturating_sub(behind.0)))
    }

    fn latency(&mut self) -> Span {
        let (low, high) = self.nature.latency_us;
        Span::from_us(self.rng.between(low, high))
    }

    fn disk_time(&mut self) -> Span {
        let (low, high) = self.nature.disk_us;
        Span::from_us(self.rng.between(low, high))
    }

    /// The views of journals that somebody may still have to read: at the server, and at their nodes.
    fn views(&self) -> impl Iterator<Item = &View> {
        let rows = self.server.disk.table.nodes.values();
        let stored = rows
            .filter(|row| row.standing != Standing::Gone)
            .filter_map(|row| row.journal.as_ref().map(|journal| &journal.view));
        let processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        stored.chain(processes.map(|process| &process.journal.view))
    }
}
