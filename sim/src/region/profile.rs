//! Parameters of one seed's region: its machines, its pace and its faults. Drawn once.

use netram_proto::journal::{CommitRule, Voter, WriterConfig, WriterTimings};
use netram_proto::time::Nanos;

use super::scenario::RegionScenario;
use crate::rng::Rng;

/// A node that is silent for this long loses its lease.
pub(super) const LEASE: Nanos = Nanos::from_ms(200);

/// Faults of a region, see `nemesis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionFault {
    /// A node's link to the server breaks.
    BreakLink,
    /// Messages over a node's link to the server vanish from now on, one way or both, and neither end is
    /// told.
    SilenceLink,
    /// A connection to a lender breaks.
    BreakConn,
    /// A host and a lender cannot reach each other.
    Partition,
    /// A node and the server cannot reach each other.
    PartitionServer,
    /// A node stands still.
    PauseNode,
    /// The server stands still.
    PauseServer,
    /// A node's process dies.
    KillNode,
    /// A node's machine loses power.
    CutNode,
    /// The server's process dies, or its machine.
    KillServer,
    /// A lender's process dies; its memory stays.
    KillLender,
    /// A lender's machine dies, and its memory with it.
    LoseLender,
    /// A lender stands still.
    PauseLender,
    /// The server's disk is slow for a while.
    SlowDisk,
    /// A client with the cluster's key speaks for a node that it is not.
    Intrude,
}

const FAULTS: [RegionFault; 15] = [
    RegionFault::BreakLink,
    RegionFault::SilenceLink,
    RegionFault::BreakConn,
    RegionFault::Partition,
    RegionFault::PartitionServer,
    RegionFault::PauseNode,
    RegionFault::PauseServer,
    RegionFault::KillNode,
    RegionFault::CutNode,
    RegionFault::KillServer,
    RegionFault::KillLender,
    RegionFault::LoseLender,
    RegionFault::PauseLender,
    RegionFault::SlowDisk,
    RegionFault::Intrude,
];

/// Parameters of one region.
#[derive(Clone, Debug)]
pub(super) struct RegionProfile {
    pub(super) scenario: RegionScenario,
    pub(super) nodes: usize,
    pub(super) lenders: usize,
    wanted: usize,
    min: usize,
    rule: CommitRule,
    /// Size of a journal's window and log, in bytes.
    pub(super) window: u64,
    pub(super) capacity: u64,
    /// Bytes of records that the server keeps for nodes that lag.
    pub(super) recent_bytes_max: usize,
    pub(super) pinned_bytes_max: usize,
    /// Latency of one way through the network, from and to, in µs.
    pub(super) latency_us: (u64, u64),
    /// Duration of a sync, from and to, in µs.
    pub(super) disk_us: (u64, u64),
    /// Chance in a thousand that a hint arrives; as many of those arrive twice.
    pub(super) hints_permille: u64,
    pub(super) survives_permille: u64,
    /// Greatest drift of a clock, in a thousand.
    pub(super) drift_permille: u64,
    /// Chance in a thousand, for each message between a node and the server, that their link breaks behind
    /// it.
    pub(super) link_break_permille: u64,
    /// Chance in a thousand that the server dies during a reading of a dead node's journal before its disk
    /// has it.
    pub(super) crash_readings_permille: u64,
    /// Chance in a thousand that a node commits its open transactions while its journal is being read.
    pub(super) late_commits_permille: u64,
    /// Chance in a thousand, at each turn, that a transaction with all its locks stays open.
    pub(super) leave_open_permille: u64,
    /// Interval at which an orphan journal is offered again.
    pub(super) offer_interval: Nanos,
    pub(super) faults: Vec<RegionFault>,
    /// Mean time between two faults.
    pub(super) fault_interval: Nanos,
    /// Whether more members may be lost than the rule tolerates.
    pub(super) beyond_budget: bool,
    pub(super) run_time: Nanos,
}

impl RegionProfile {
    pub(super) fn draw(rng: &mut Rng) -> RegionProfile {
        let story = RegionScenario::draw(rng);
        let lenders = rng.between(1, 4) as usize;
        let wanted = rng.between(1, 3.min(lenders as u64)) as usize;
        let rule = match rng.below(4) {
            0..2 => CommitRule::All,
            2 => CommitRule::Any,
            _ => CommitRule::AtLeast(rng.between(1, wanted as u64) as u8),
        };
        let density = rng.pick(&[0, 150, 300, 500]);
        let mut nature = RegionProfile {
            scenario: story,
            nodes: rng.between(2, 4) as usize,
            lenders,
            wanted,
            min: rng.between(1, wanted as u64) as usize,
            rule,
            window: rng.pick(&[8 * 1024, 16 * 1024]),
            capacity: rng.pick(&[16 * 1024, 32 * 1024]),
            recent_bytes_max: rng.pick(&[400, 20_000, 20_000]),
            pinned_bytes_max: rng.pick(&[40, 200, 2000]),
            latency_us: rng.pick(&[(20, 60), (50, 500), (500, 3000), (100, 15_000)]),
            disk_us: rng.pick(&[(80, 300), (500, 3000), (5000, 20_000)]),
            hints_permille: rng.pick(&[0, 500, 900]),
            survives_permille: rng.pick(&[0, 500, 1000]),
            drift_permille: rng.pick(&[0, 50]),
            link_break_permille: rng.pick(&[0, 0, 3, 12]),
            crash_readings_permille: rng.pick(&[0, 0, 150, 400]),
            late_commits_permille: rng.pick(&[0, 500, 1000]),
            leave_open_permille: rng.pick(&[400, 400, 980]),
            offer_interval: Nanos::from_ms(rng.pick(&[1, 10, 150])),
            faults: FAULTS.into_iter().filter(|_| rng.chance(density)).collect(),
            fault_interval: Nanos::from_ms(rng.pick(&[15, 40, 120])),
            beyond_budget: rng.chance(150),
            run_time: Nanos::from_ms(rng.pick(&[400, 800, 1600])),
        };
        story.adapt(&mut nature);
        nature
    }

    pub(super) fn writer(&self, slot: usize) -> WriterConfig {
        WriterConfig {
            lenders: (0..self.lenders).map(|index| format!("l{index}")).collect(),
            rule: self.rule,
            wanted: self.wanted,
            min: self.min,
            domain: format!("n{slot}"),
            one_domain: true,
            window_bytes: self.window,
            timing: WriterTimings {
                idle: WriterTimings::default().idle,
                ping: Nanos::from_ms(20),
                detect: Nanos::from_ms(100),
                retry: Nanos::from_ms(100),
                resend: None,
            },
            cast: None,
            voter: Voter::Server,
        }
    }

    /// Adds a spare member. Worlds that cannot lose one are of little use to some scenarios.
    pub(super) fn with_spare_member(&mut self) {
        self.lenders = self.lenders.max(3);
        self.wanted = self.wanted.max(2);
        self.min = 1;
        self.rule = CommitRule::All;
    }
}
