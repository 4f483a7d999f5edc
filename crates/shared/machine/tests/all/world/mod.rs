//! A simulated region with its server and some nodes, and all their faults, drawn from one seed.
//!
//! One server with a disk, of which a crash leaves the flushed part. Processes with a journal each, whose
//! members acknowledge, are fenced, and are read afterwards. Ordered, slow links that break. Processes that
//! die, sleep longer than their lease, and wake. Hints between nodes in any order, or lost. `check.rs` has
//! the rules of `docs/design/shared.md`.
//!
//! | file | contents |
//! |---|---|
//! | `bytes.rs` | a region of words, spans, records |
//! | `journal.rs` | a node's journal and its members |
//! | `server.rs` | the server's process and its disk |
//! | `process.rs` | a node's process: its actions and its link |
//! | `program.rs` | the program in it: transactions, readers |
//! | `hints.rs` | records sent directly between processes |
//! | `check.rs` | the rules |

pub(crate) mod bytes;
mod check;
mod hints;
mod journal;
mod process;
mod program;
mod server;

use std::collections::{BTreeMap, VecDeque};

use netram_proto::id::JournalId;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::server::SessionId;
use netram_shared_machine::{ToNode, ToServer};

use bytes::PayloadBytes;
use check::RegionHistory;
pub(crate) use check::RegionRule;
use journal::NodeRecords;
use process::MachineSlot;
pub(crate) use process::NodeProcess;
use server::ServerHost;

pub(crate) const LEASE: Nanos = Nanos::from_ms(100);
/// Number of messages that a link takes before its receiver has read some.
const WINDOW: usize = 6;

/// Rates of faults, each per ten thousand steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultRates {
    pub(crate) link_breaks: u64,
    pub(crate) process_dies: u64,
    pub(crate) process_sleeps: u64,
    pub(crate) server_dies: u64,
    pub(crate) members_lost: u64,
    /// Percentage of hints that arrive.
    pub(crate) hints: u64,
}

impl FaultRates {
    pub(crate) const NONE: FaultRates = FaultRates {
        link_breaks: 0,
        process_dies: 0,
        process_sleeps: 0,
        server_dies: 0,
        members_lost: 0,
        hints: 50,
    };
    pub(crate) const ALL: FaultRates = FaultRates {
        link_breaks: 60,
        process_dies: 25,
        process_sleeps: 25,
        server_dies: 20,
        members_lost: 30,
        hints: 50,
    };
}

/// A bug planted in the world, to see that the rules find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorldBug {
    Nothing,
    /// A node's records come after the tokens that it gives back. The server defends itself against this.
    ReleaseBeforeTail,
    /// A dead node's journal is not read: its locks are granted at once.
    GrantBeforeRead,
    /// The members of a fenced node go on acknowledging.
    NoFence,
    /// The server reports unflushed records as durable.
    AckBeforeDurable,
    /// A node applies records that waited for its readers in the wrong order.
    WaitingReversed,
    /// Records read from a dead node's journal count as flushed.
    ReadIsDurable,
    /// A hint names no needs.
    HintWithoutNeeds,
    /// A node sends its peers unsafe records.
    HintBeforeSafe,
}

/// A small random generator (splitmix64): the same seed gives the same history.
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// A link, in both directions. Messages on it are lost when it breaks.
#[derive(Debug, Default)]
pub(crate) struct NodePipe {
    slot: usize,
    up: VecDeque<(Time, ToServer<PayloadBytes>)>,
    down: VecDeque<(Time, ToNode<PayloadBytes>)>,
    /// The server has closed the link: the node finds out after the last message.
    closed: bool,
}

/// A record on its way from node to node.
#[derive(Debug)]
struct SentHint {
    at: Time,
    slot: usize,
    bytes: Vec<u8>,
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) dice: SplitMix,
    pub(crate) now: Time,
    pub(crate) fault_rates: FaultRates,
    pub(crate) planted: WorldBug,
    /// Whether the server's disk holds back its writes.
    pub(crate) hold_flush: bool,
    /// Whether programs only do what the test asks.
    pub(crate) script: bool,
    /// Whether no new work begins.
    pub(crate) quiescing: bool,
    host: ServerHost,
    pub(crate) slots: Vec<MachineSlot>,
    journals: BTreeMap<JournalId, NodeRecords>,
    links: BTreeMap<SessionId, NodePipe>,
    sessions: u64,
    hints: Vec<SentHint>,
    pub(crate) history: RegionHistory,
}

impl World {
    pub(crate) fn new(seed: u64, nodes: usize) -> World {
        // Often a small ring, so that nodes fall behind it.
        let small = SplitMix::new(!seed).percent(30);
        World::with_recent(seed, nodes, if small { 400 } else { 20_000 })
    }

    /// Creates a world whose server keeps this many bytes of records for nodes that are behind.
    pub(crate) fn with_recent(seed: u64, nodes: usize, recent_bytes_max: usize) -> World {
        let dice = SplitMix::new(seed);
        World {
            seed,
            now: Time(1_000_000_000),
            fault_rates: FaultRates::NONE,
            planted: WorldBug::Nothing,
            hold_flush: false,
            script: false,
            quiescing: false,
            host: ServerHost::new(recent_bytes_max),
            slots: (0..nodes).map(|_| MachineSlot::default()).collect(),
            journals: BTreeMap::new(),
            links: BTreeMap::new(),
            sessions: 0,
            hints: Vec::new(),
            history: RegionHistory::default(),
            dice,
        }
    }

    /// Moves on by a moment: one event happens, with all consequences.
    pub(crate) fn step(&mut self) {
        self.now = self.now + Nanos::from_us(200 + self.dice.below(3000));
        if self.host.is_down() {
            if self.quiescing || self.dice.percent(3) {
                self.start_server();
            }
        } else if !self.quiescing && self.dice.below(10_000) < self.fault_rates.server_dies {
            self.kill_server();
        }
        self.run_server();
        for slot in 0..self.slots.len() {
            self.run_slot(slot);
        }
        self.deliver_hints();
        self.check_always();
    }

    pub(crate) fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// Runs until `done` returns true.
    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        for _ in 0..4000 {
            if done(self) {
                return;
            }
            self.step();
        }
        self.fail(RegionRule::Ends, &format!("never: {what}"));
    }

    /// Runs until everything is at rest: no more faults occur, and dead processes stay dead.
    pub(crate) fn quiesce(&mut self) {
        self.quiescing = true;
        self.hold_flush = false;
        self.fault_rates = FaultRates::NONE;
        for slot in &mut self.slots {
            slot.wake();
        }
        for journal in self.journals.values_mut() {
            journal.unreachable = false;
            journal.slow = false;
        }
        for _ in 0..6000 {
            self.step();
            if self.is_quiescent() {
                return self.check_quiescent();
            }
        }
        let why = self.busy_reason();
        self.fail(RegionRule::Ends, &format!("no rest: {why}"));
    }

    fn delay(&mut self) -> Time {
        let quick = self.dice.percent(80);
        self.now + Nanos::from_us(self.dice.below(if quick { 2000 } else { 15_000 }))
    }

    fn connect(&mut self, slot: usize) -> SessionId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let pipe = NodePipe {
            slot,
            ..NodePipe::default()
        };
        self.links.insert(session, pipe);
        session
    }

    fn deliver_hints(&mut self) {
        while let Some(at) = self.hints.iter().position(|hint| hint.at <= self.now) {
            let SentHint { slot, bytes, .. } = self.hints.swap_remove(at);
            self.take_hint(slot, &bytes);
        }
    }

    pub(crate) fn fail(&self, rule: RegionRule, what: &str) -> ! {
        panic!("{rule:?} broken, seed {}: {what}", self.seed);
    }
}
