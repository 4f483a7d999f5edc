//! Worlds in which several nodes share a region. The machines of a shared region (`RegionServer`,
//! `RegionNode`) and those of the nodes' journals (`JournalWriter`, `Recovery`, `assemble`, `MemberForget`)
//! are the ones that ship.
//!
//! There are machines with processes of a node, lenders, and the server, with a clock each. Links between
//! them are late and break. A process dies, its machine loses power, or any of them stands still.
//! `docs/design/simulator.md` lists all faults; the rules are those of `docs/design/shared.md`.
//!
//! | module | is |
//! |---|---|
//! | `profile`, `scenario`, `nemesis` | parameters of one seed's world, its scenario, its faults |
//! | `bytes` | a region of words, spans, records |
//! | `process`, `program` | a node's process, and the program in it |
//! | `journal`, `orphans` | its journal; journals of earlier processes |
//! | `server` | the server's process, its disk, its readings |
//! | `lenders`, `net`, `member_query` | lenders, connections to them, queries that fence and read members |
//! | `node_link` | links between nodes and server; hints from node to node |
//! | `history`, `check`, `quiescence` | true history, the oracles, and the state at quiescence |

mod bytes;
mod check;
mod history;
mod journal;
mod lenders;
mod member_query;
mod nemesis;
mod net;
mod node_link;
mod orphans;
mod process;
mod profile;
mod program;
mod quiescence;
mod scenario;
mod server;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::journal::View;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::server::{LinkEnd, NodeState, SessionId};

use crate::coverage::Coverage;
use crate::disk::{DiskFaults, SimDisk};
use crate::event::FrameDirection;
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::EventTrace;
pub use check::REGION_RULES;
use history::RegionHistory;
use lenders::RegionLender;
use member_query::MemberQuery;
use net::RegionConnection;
use node_link::SimNodeLink;
use process::MachineSlot;
use profile::RegionProfile;
use server::ServerHost;

/// Maximum number of events of one world, as a guard against an endless one.
const EVENTS_MAX: u64 = 3_000_000;

/// An event of this world.
#[derive(Debug)]
enum Event {
    Connected { conn: usize },
    Frame { conn: usize, way: FrameDirection },
    Closed { conn: usize },
    Query { query: usize },
    MachineUp { machine: usize },
    SlotUp { slot: usize },
    Tick { slot: usize, life: u64 },
    Program { slot: usize, life: u64 },
    LateCommit { slot: usize, life: u64 },
    Flushed { slot: usize, life: u64 },
    ViewStored { slot: usize, life: u64 },
    Linked { session: SessionId },
    Up { session: SessionId },
    Down { session: SessionId },
    Unlinked { session: SessionId },
    HungUp { session: SessionId, closed: LinkEnd },
    Hint { slot: usize, bytes: Vec<u8> },
    ServerUp,
    ServerTick { boot: u32 },
    ServerFlushed { boot: u32, count: usize },
    Nemesis,
    Scenario,
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

/// The whole simulated region.
struct World {
    now: Time,
    queue: EventQueue<Event>,
    rng: Rng,
    coverage: Coverage,
    trace: EventTrace,
    planted: FaultSwitch,
    profile: RegionProfile,
    machines: Vec<RegionLender>,
    conns: Vec<RegionConnection>,
    /// `[host][lender]`: frames are blocked until this time. The last host is the server.
    blocked: Vec<Vec<Time>>,
    queries: Vec<Option<MemberQuery>>,
    /// Journals that were removed before all lenders were told, or without knowing whether they may be.
    pending_forgets: BTreeSet<JournalId>,
    server: ServerHost,
    slots: Vec<MachineSlot>,
    node_links: BTreeMap<SessionId, SimNodeLink>,
    sessions: u64,
    lives: u64,
    incarnations: u64,
    /// Time since which no more faults happen and no transaction begins.
    calm_since: Option<Time>,
    history: RegionHistory,
}

/// Runs the region of one seed until it rests. Returns its fingerprint and its coverage.
pub(crate) fn run(mut rng: Rng, planted: FaultSwitch, trace: EventTrace) -> (u64, Coverage) {
    let nature = RegionProfile::draw(&mut rng);
    let lasts = nature.run_time;
    let mut world = World::new(rng, nature, planted, trace);
    world.coverage.hit("region: worlds");
    world.start_server();
    for slot in 0..world.slots.len() {
        let ms = world.rng.pick(&[0, 0, 30, 300]);
        world.after_ms(ms, Event::SlotUp { slot });
    }
    world.plan_nemesis();
    world.plan_scenario();
    world.run_for(lasts);
    world.quiesce();
    let events = world.trace.events;
    world.coverage.add("events", events);
    (world.trace.hash(), world.coverage)
}

impl World {
    fn new(mut rng: Rng, nature: RegionProfile, planted: FaultSwitch, mut trace: EventTrace) -> World {
        let now = Time(1_000_000_000);
        trace.tell(now, || format!("{nature:?}"));
        let drift = nature.drift_permille;
        let slots = (0..nature.nodes).map(|_| {
            let mut disk = SimDisk::new(rng.fork());
            disk.faults = DiskFaults {
                survives_permille: nature.survives_permille,
                ..DiskFaults::default()
            };
            MachineSlot::new(Rc::new(RefCell::new(disk)), Clock::draw(&mut rng, drift))
        });
        let slots: Vec<MachineSlot> = slots.collect();
        let roomy = rng.pick(&[0, 0, 300, 1000]);
        let machines = (0..nature.lenders).map(|index| {
            let incarnation = Incarnation(index as u64 + 1);
            RegionLender::new(index, incarnation, rng.chance(roomy))
        });
        let machines: Vec<RegionLender> = machines.collect();
        World {
            now,
            queue: EventQueue::default(),
            coverage: Coverage::default(),
            trace,
            planted,
            machines,
            conns: Vec::new(),
            blocked: vec![vec![Time(0); nature.lenders]; nature.nodes + 1],
            queries: Vec::new(),
            pending_forgets: BTreeSet::new(),
            server: ServerHost::new(Clock::draw(&mut rng, drift)),
            slots,
            node_links: BTreeMap::new(),
            sessions: 0,
            lives: 0,
            incarnations: nature.lenders as u64,
            calm_since: None,
            history: RegionHistory::default(),
            profile: nature,
            rng,
        }
    }

    /// Handles the next event.
    fn step(&mut self) {
        let Some((at, event)) = self.queue.pop() else {
            unreachable!("a mark is always ahead")
        };
        self.trace.events += 1;
        assert!(self.trace.events < EVENTS_MAX, "the world does not end");
        self.now = self.now.max(at);
        if let Some(until) = self.standing_still(&event) {
            return self.queue.push(until, event);
        }
        match event {
            Event::Connected { conn } => self.on_connected(conn),
            Event::Frame { conn, way } => self.on_frame(conn, way),
            Event::Closed { conn } => self.on_closed(conn),
            Event::Query { query } => self.on_query(query),
            Event::MachineUp { machine } => self.start_machine(machine),
            Event::SlotUp { slot } => self.start_process(slot),
            Event::Tick { slot, life } => self.on_tick(slot, life),
            Event::Program { slot, life } => self.on_program(slot, life),
            Event::LateCommit { slot, life } => self.on_late_commit(slot, life),
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
            Event::Scenario => self.on_scenario(),
            Event::Mark => (),
        }
    }

    /// Time until which the receiver of an event stands still.
    fn standing_still(&self, event: &Event) -> Option<Time> {
        let until = match event {
            Event::Hint { slot, .. }
            | Event::Tick { slot, .. }
            | Event::Program { slot, .. }
            | Event::Flushed { slot, .. }
            | Event::ViewStored { slot, .. } => self.slots[*slot].paused_until,
            Event::Linked { session } => self.slots[self.node_link_slot(*session)?].paused_until,
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

    fn after_ms(&mut self, ms: u64, event: Event) {
        self.at(Nanos(Nanos::from_ms(ms).0 + 1), event);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    /// Local time of a slot's machine.
    fn local(&self, slot: usize) -> Time {
        let MachineSlot {
            clock,
            clock_lag: behind,
            ..
        } = &self.slots[slot];
        clock.local(Time(self.now.0.saturating_sub(behind.0)))
    }

    fn latency(&mut self) -> Nanos {
        let (low, high) = self.profile.latency_us;
        Nanos::from_us(self.rng.between(low, high))
    }

    fn disk_time(&mut self) -> Nanos {
        let (low, high) = self.profile.disk_us;
        Nanos::from_us(self.rng.between(low, high))
    }

    /// The views of journals that may still have to be read: at the server, and at their nodes.
    fn views(&self) -> impl Iterator<Item = &View> {
        let rows = self.server.disk.table.nodes.values();
        let stored = rows
            .filter(|row| row.state != NodeState::Gone)
            .filter_map(|row| row.journal.as_ref().map(|journal| &journal.view));
        let processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        stored.chain(processes.map(|process| &process.journal.view))
    }
}
