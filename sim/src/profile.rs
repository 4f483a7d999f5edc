//! Parameters of one seed's world: its size, links and disk, and its faults. They are drawn once, from the
//! seed. Most worlds lack most faults, so that each fault can be seen alone (swarm testing).

use netram_proto::journal::{CommitRule, WriterTimings};
use netram_proto::time::Nanos;

use crate::disk::DiskFaults;
use crate::rng::Rng;

/// How a world's links behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// In order and whole until they break.
    Stream,
    /// Frames are lost, repeated and delayed one by one.
    Datagram,
}

/// Faults of a world. One happens at a time, see `nemesis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorldFault {
    /// A connection breaks.
    BreakLink,
    /// Client and lender cannot reach each other, in one direction or both.
    Partition,
    /// A lender stands still.
    PauseLender,
    /// The client stands still.
    PauseClient,
    /// A lender's process dies; its memory stays.
    KillLender,
    /// A lender's machine dies, and its memory with it.
    LoseLender,
    /// All machines of one power domain lose power.
    PowerDomain,
    /// A lender has no room for a while.
    FillLender,
    /// An operator withdraws a lender.
    WithdrawLender,
    /// The client's process dies.
    CrashClient,
    /// The client's machine loses power.
    CutClient,
    /// The client dies a few disk operations from now.
    CrashMidway,
    /// The disk is slow for a while.
    SlowDisk,
    /// Syncs fail for a moment.
    FailSync,
    /// The disk is full for a moment.
    FullDisk,
    /// The system refuses some calls in a row for want of descriptors, memory, room or rights, or a signal
    /// interrupts them.
    RefuseCalls,
    /// A sector on the disk is damaged.
    Rot,
    /// A sector cannot be read.
    Unreadable,
    /// Old bytes of this log, or of another, lie behind the log's end.
    StaleBytes,
    /// One slot of the view file or of the superblock is damaged, or cannot be read.
    SlotDamage,
    /// A lender moves to another address.
    MoveLender,
    /// A client with the cluster's key means harm.
    Intrude,
    /// A lender stops at once and writes its memory to its disk.
    SpillLender,
    /// A lender hears nothing of the journal's client for long.
    SilenceClient,
    /// Other clients of a lender take and give back memory.
    ShareLender,
    /// A lender's operator lowers a limit of the journal's client, and raises it later.
    LimitClient,
    /// A lender's operator revokes the key of the journal's client, and accepts it again later.
    RevokeClient,
    /// The client's operator changes lenders, rule or number of members.
    ChangeMembership,
}

/// Faults that are drawn for any world.
pub const FAULTS: [WorldFault; 20] = [
    WorldFault::BreakLink,
    WorldFault::Partition,
    WorldFault::PauseLender,
    WorldFault::PauseClient,
    WorldFault::KillLender,
    WorldFault::LoseLender,
    WorldFault::PowerDomain,
    WorldFault::FillLender,
    WorldFault::WithdrawLender,
    WorldFault::CrashClient,
    WorldFault::CutClient,
    WorldFault::CrashMidway,
    WorldFault::SlowDisk,
    WorldFault::FailSync,
    WorldFault::FullDisk,
    WorldFault::RefuseCalls,
    WorldFault::Rot,
    WorldFault::Unreadable,
    WorldFault::StaleBytes,
    WorldFault::SlotDamage,
];

/// Parameters of one world.
#[derive(Clone, Debug)]
pub struct WorldProfile {
    /// Number of lenders.
    pub lenders: usize,
    /// Wanted number of members.
    pub wanted: usize,
    /// Minimum number of members; with fewer, commits wait for the disk.
    pub min: usize,
    /// The commit rule.
    pub rule: CommitRule,
    /// Whether all members may be in the client's power domain.
    pub one_domain: bool,
    /// Each lender's power domain; the client's is `d0`.
    pub domains: Vec<String>,
    /// Size of the ring and of each window, in bytes.
    pub window: u64,
    /// Size of the log's data area, in bytes.
    pub capacity: u64,
    /// Largest payload of a record, in bytes.
    pub payload_max: usize,
    /// How links behave.
    pub links: LinkKind,
    /// Latency of one way through the network, from and to, in µs.
    pub latency_us: (u64, u64),
    /// Duration of a sync, from and to, in µs.
    pub disk_us: (u64, u64),
    /// Chance in a thousand that a frame or datagram is lost; as many are repeated, and as many are late.
    pub loss_permille: u64,
    /// Faults of the disk that last for the whole run.
    pub disk: DiskFaults,
    /// Whether an opening can make the operating system drop its cache. If not, a failed sync leaves bytes
    /// that are read but are not on the platter.
    pub drops_cache: bool,
    /// Timeouts of the writer.
    pub timing: WriterTimings,
    /// Faults that happen in this world.
    pub faults: Vec<WorldFault>,
    /// Mean time between faults.
    pub fault_interval: Nanos,
    /// Whether appends are multicast. Links are streams then.
    pub multicast: bool,
    /// Bytes of a datagram.
    pub datagram_bytes: usize,
    /// Index of a lender that is further away than the others, and its one-way latency in µs. Frames to it
    /// keep their order.
    pub distant: Option<(usize, (u64, u64))>,
    /// Whether faults never take the last copy of anything acknowledged.
    pub within_budget: bool,
    /// The index of a lender that lies.
    pub hostile: Option<usize>,
    /// Whether a client with the cluster's key means harm.
    pub intruded: bool,
    /// Whether lenders that stop write their memory to their disks.
    pub spills: bool,
    /// Index of the lender that each address of the settings leads to at first; `None` if there is none yet.
    pub address_lenders: Vec<Option<usize>>,
}

impl WorldProfile {
    /// Draws the parameters of a world with journals.
    pub fn draw(rng: &mut Rng) -> WorldProfile {
        let lenders = rng.between(1, 4) as usize;
        let wanted = rng.between(1, 3.min(lenders as u64)) as usize;
        let rule = match rng.below(4) {
            0 | 1 => CommitRule::All,
            2 => CommitRule::Any,
            _ => CommitRule::AtLeast(rng.between(1, wanted as u64) as u8),
        };
        let (window, capacity, payload_max) = draw_sizes(rng);
        let links = if rng.chance(350) {
            LinkKind::Datagram
        } else {
            LinkKind::Stream
        };
        let latency = rng.pick(&[(20, 60), (50, 500), (500, 3000), (100, 30_000)]);
        let disk_us = rng.pick(&[(80, 300), (500, 3000), (5000, 20_000), (20_000, 200_000)]);
        let drops_cache = rng.chance(500);
        let mut actions = draw_faults(rng);
        // With the cache kept, damage that a write repaired whose sync then failed cannot be found.
        actions.retain(|action| drops_cache || *action != WorldFault::Rot);
        WorldProfile {
            lenders,
            wanted,
            min: rng.between(1, wanted as u64) as usize,
            rule,
            one_domain: rng.chance(300),
            domains: (0..lenders).map(|_| format!("d{}", rng.below(3))).collect(),
            window,
            capacity,
            payload_max,
            links,
            latency_us: latency,
            disk_us,
            loss_permille: rng.pick(&[0, 10, 80, 250]),
            disk: DiskFaults {
                survives_permille: rng.pick(&[0, 500, 500, 900, 1000]),
                ..DiskFaults::default()
            },
            timing: WriterTimings {
                idle: Nanos::from_ms(1000),
                resend: (links == LinkKind::Datagram).then(|| Nanos::from_ms(rng.between(5, 100))),
                ..WriterTimings::default()
            },
            drops_cache,
            faults: actions,
            fault_interval: Nanos::from_ms(rng.pick(&[30, 100, 300, 1000])),
            multicast: false,
            datagram_bytes: 600,
            distant: None,
            within_budget: rng.chance(500),
            hostile: None,
            intruded: false,
            spills: false,
            address_lenders: (0..lenders).map(Some).collect(),
        }
    }

    /// Makes appends multicast, to at least two lenders.
    pub fn multicast(&mut self, rng: &mut Rng) {
        self.multicast = true;
        self.links = LinkKind::Stream;
        self.timing.resend = None;
        self.lenders = self.lenders.max(2);
        self.wanted = self.wanted.max(2);
        self.domains.resize(self.lenders, String::from("d1"));
        self.address_lenders = (0..self.lenders).map(Some).collect();
        self.datagram_bytes = rng.pick(&[548, 1400, 8972]);
    }

    /// Adds a client that means harm.
    pub fn intruded(&mut self) {
        self.intruded = true;
        self.within_budget = false;
        let more = self.faults.len().max(2);
        self.faults.extend(vec![WorldFault::Intrude; more]);
    }

    /// Makes lenders write their memory to their disks when they stop.
    pub fn spilling(&mut self, rng: &mut Rng) {
        self.spills = true;
        // Old copies and losses without notice matter only beyond the budget.
        self.within_budget = rng.chance(300);
        self.fault_interval = Nanos::from_ms(rng.pick(&[100, 300]));
        // Each window counts for most.
        (self.rule, self.min, self.one_domain) = (CommitRule::All, 1, true);
        self.faults.truncate(rng.index(4));
        self.faults.extend([
            WorldFault::SpillLender,
            WorldFault::SpillLender,
            WorldFault::SpillLender,
            WorldFault::SilenceClient,
            WorldFault::SilenceClient,
            WorldFault::SilenceClient,
            WorldFault::WithdrawLender,
            WorldFault::LoseLender,
            WorldFault::LoseLender,
            WorldFault::CrashClient,
            WorldFault::CutClient,
        ]);
    }

    /// Gives clients names and limits. Links are whole until they break: a revoked client's session ends with
    /// its link.
    pub fn name_clients(&mut self) {
        self.links = LinkKind::Stream;
        self.timing.resend = None;
        for _ in 0..self.faults.len().max(2) {
            self.faults.extend([
                WorldFault::ShareLender,
                WorldFault::LimitClient,
                WorldFault::RevokeClient,
            ]);
        }
    }

    /// Whether clients have names and limits.
    pub fn names_clients(&self) -> bool {
        self.faults.contains(&WorldFault::RevokeClient)
    }

    /// Removes all faults but those of the scenario. Lenders are near, and their links whole.
    pub fn quiet(&mut self, rng: &mut Rng) {
        self.links = LinkKind::Stream;
        self.timing.resend = None;
        self.latency_us = rng.pick(&[(20, 60), (50, 500), (500, 3000)]);
        self.disk_us = rng.pick(&[(80, 300), (500, 3000), (5000, 20_000)]);
        self.loss_permille = 0;
        self.one_domain = true;
        self.hostile = None;
        self.faults.clear();
    }

    /// Makes the world quiet, with two to four lenders, any of which may be a member.
    pub fn drained(&mut self, rng: &mut Rng) {
        self.quiet(rng);
        self.lenders = rng.between(2, 4) as usize;
        self.wanted = rng.between(1, self.lenders as u64) as usize;
        self.rule = match rng.below(3) {
            0 => CommitRule::Any,
            1 => CommitRule::AtLeast(rng.between(1, self.wanted as u64) as u8),
            _ => CommitRule::All,
        };
        self.min = rng.between(1, self.wanted as u64) as usize;
        self.domains.resize(self.lenders, String::from("d1"));
        self.address_lenders = (0..self.lenders).map(Some).collect();
        self.multicast &= self.lenders > 1;
    }

    /// Lets the client's operator change lenders, rule and number of members.
    pub fn elastic(&mut self, rng: &mut Rng) {
        self.fault_interval = Nanos::from_ms(rng.pick(&[30, 100, 300]));
        self.faults.truncate(rng.index(6));
        for _ in 0..self.faults.len().max(2) {
            self.faults.push(WorldFault::ChangeMembership);
        }
        self.faults
            .extend([WorldFault::CrashClient, WorldFault::CutClient]);
    }

    /// Gives lenders several addresses, and lets them move.
    pub fn many_addresses(&mut self, rng: &mut Rng) {
        self.links = LinkKind::Stream;
        self.timing.resend = None;
        let aliases = rng.below(3);
        for _ in 0..aliases {
            let lender = rng.index(self.lenders);
            let at = rng.index(self.address_lenders.len() + 1);
            self.address_lenders.insert(at, Some(lender));
        }
        let at = rng.index(self.address_lenders.len() + 1);
        self.address_lenders.insert(at, None);
        if rng.chance(700) {
            self.faults.push(WorldFault::MoveLender);
        }
    }

    /// Makes the world quiet, with one of three multicast members 5 to 50 ms away, there and back.
    pub fn distant(&mut self, rng: &mut Rng) {
        self.lenders = 3;
        self.wanted = 3;
        self.min = 1;
        self.rule = CommitRule::Any;
        self.one_domain = true;
        self.domains.truncate(3);
        self.multicast(rng);
        let nearest = rng.between(2500, 12_000);
        self.distant = Some((rng.index(3), (nearest, rng.between(nearest, 25_000))));
        self.latency_us = (20, 60);
        self.loss_permille = 0;
        self.window = 256 * 1024;
        self.capacity = 512 * 1024;
        self.payload_max = rng.pick(&[24, 200, 1200]);
        self.faults.clear();
    }

    /// Lets lenders come and go faster than the disk and the slowest frame: acknowledgements outlive the
    /// windows they speak of.
    pub fn storm(&mut self, rng: &mut Rng) {
        self.links = LinkKind::Datagram;
        self.loss_permille = 250;
        self.latency_us = rng.pick(&[(20, 60), (500, 3000), (100, 30_000)]);
        self.disk_us = rng.pick(&[(5000, 20_000), (20_000, 200_000), (20_000, 200_000)]);
        self.timing.resend = Some(Nanos::from_ms(rng.between(20, 200)));
        self.lenders = rng.between(1, 3) as usize;
        self.wanted = self.wanted.min(self.lenders);
        self.min = 1;
        self.rule = CommitRule::All;
        self.one_domain = true;
        self.domains.truncate(self.lenders);
        self.domains.resize(self.lenders, String::from("d1"));
        self.address_lenders = (0..self.lenders).map(Some).collect();
        self.faults = vec![WorldFault::LoseLender, WorldFault::BreakLink];
        self.fault_interval = Nanos::from_ms(rng.pick(&[100, 300, 600]));
        self.payload_max = rng.pick(&[24, 200]);
        self.within_budget = false;
    }

    /// Whether a view of this world's lenders can ever count; only then does a wait for members *and* disk
    /// end.
    pub fn can_count(&self) -> bool {
        self.hostile.is_none() && !self.intruded && self.can_count_with(&|_| true)
    }

    /// Whether a view of the lenders that are `able` can count.
    pub fn can_count_with(&self, able: &dyn Fn(usize) -> bool) -> bool {
        let elsewhere = (0..self.lenders).any(|lender| able(lender) && self.domains[lender] != "d0");
        let members = self.members_of(able);
        let enough = members >= self.min.max(self.rule.copies(members));
        (self.one_domain || elsewhere) && enough
    }

    /// Maximum number of members of a view without faults. With fewer copies than members, fewer are in the
    /// client's domain.
    pub fn members_possible(&self) -> usize {
        self.members_of(&|_| true)
    }

    fn members_of(&self, able: &dyn Fn(usize) -> bool) -> usize {
        let able = (0..self.lenders).filter(|&lender| able(lender));
        let here = able
            .clone()
            .filter(|&lender| self.domains[lender] == "d0")
            .count();
        let room = match self.rule {
            CommitRule::All => here,
            rule => here.min(rule.copies(self.lenders) - 1),
        };
        let all = if self.one_domain {
            able.count()
        } else {
            able.count() - here + room
        };
        all.min(self.wanted)
    }
}

/// Draws the bytes of a window, of the log's data area, and of the largest payload.
fn draw_sizes(rng: &mut Rng) -> (u64, u64, usize) {
    if rng.chance(40) {
        return (256 * 1024, 512 * 1024, 100 * 1024);
    }
    let window = rng.pick(&[16 * 1024, 16 * 1024, 32 * 1024]);
    let capacity = rng.pick(&[16 * 1024, 32 * 1024, 64 * 1024]);
    (window, capacity, rng.pick(&[24, 200, 1200, 5000]))
}

fn draw_faults(rng: &mut Rng) -> Vec<WorldFault> {
    let density = rng.pick(&[100, 250, 500]);
    FAULTS.into_iter().filter(|_| rng.chance(density)).collect()
}
