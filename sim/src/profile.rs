//! What one seed's world is like: its size, its links, its disk, and which faults visit it. Drawn once, from
//! the seed; leaving most faults out of most worlds lets the rest be seen (swarm testing).

use netram_proto::journal::{CommitRule, WriterTimings};
use netram_proto::time::Nanos;

use crate::disk::DiskFaults;
use crate::rng::Rng;

/// How a world's links behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// In order and whole until they break.
    Stream,
    /// Every frame for itself: lost, doubled, late.
    Datagram,
}

/// What may happen to a world. One action a time, see `nemesis`.
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
    /// The disk takes its time.
    SlowDisk,
    /// Syncs fail for a moment.
    FailSync,
    /// The disk is full for a moment.
    FullDisk,
    /// The system refuses some calls in a row: no descriptors, memory, room, rights; or a signal interrupts
    /// them.
    RefuseCalls,
    /// A sector that was on the disk rots.
    Rot,
    /// A sector cannot be read.
    Unreadable,
    /// Old bytes of this log, or of another, lie behind the log's end.
    StaleBytes,
    /// One slot of the view file or of the superblock rots, or cannot be read.
    SlotDamage,
    /// A lender is reached by another address from now on.
    MoveLender,
    /// A client with the cluster's key means harm.
    Intrude,
}

/// Those that visit any world.
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

/// One world's nature.
#[derive(Clone, Debug)]
pub struct WorldProfile {
    /// Lenders there are.
    pub lenders: usize,
    /// Members wanted.
    pub wanted: usize,
    /// Members below which commits wait for the disk.
    pub min: usize,
    /// The commit rule.
    pub rule: CommitRule,
    /// Whether all members may be in the client's power domain.
    pub one_domain: bool,
    /// Each lender's power domain; the client's is `d0`.
    pub domains: Vec<String>,
    /// Bytes of ring and windows.
    pub window: u64,
    /// Bytes of the log's data area.
    pub capacity: u64,
    /// The largest payload appended.
    pub payload_max: usize,
    /// How links behave.
    pub links: LinkKind,
    /// One way through the network, at least and at most, in µs.
    pub latency_us: (u64, u64),
    /// A sync, at least and at most, in µs.
    pub disk_us: (u64, u64),
    /// Frames lost on datagram links, and datagrams lost, in a thousand; as many are doubled, and as many
    /// come late.
    pub loss_permille: u64,
    /// The disk's nature between the nemesis's visits.
    pub disk: DiskFaults,
    /// Whether an opening can make the operating system drop its cache. Where it cannot, a failed sync leaves
    /// bytes that are read and are not on the platter.
    pub drops_cache: bool,
    /// Timeouts of the writer.
    pub timing: WriterTimings,
    /// What visits this world.
    pub faults: Vec<WorldFault>,
    /// Mean time between visits.
    pub fault_interval: Nanos,
    /// Whether appends are multicast. Links are streams then.
    pub multicast: bool,
    /// Bytes of a datagram.
    pub datagram_bytes: usize,
    /// A lender that is further away than the others, and how far, one way, in µs. What it is sent keeps its
    /// order.
    pub distant: Option<(usize, (u64, u64))>,
    /// Whether visits stop short of taking the last copy of anything acknowledged.
    pub within_budget: bool,
    /// The index of a lender that lies.
    pub hostile: Option<usize>,
    /// Whether a client with the cluster's key means harm.
    pub intruded: bool,
    /// Which lender each address of the settings leads to at first; `None`: nobody's yet.
    pub address_lenders: Vec<Option<usize>>,
}

impl WorldProfile {
    /// The nature of a world with journals.
    pub fn draw(rng: &mut Rng) -> WorldProfile {
        let lenders = rng.between(1, 4) as usize;
        let wanted = rng.between(1, 3.min(lenders as u64)) as usize;
        let rule = match rng.below(4) {
            0 | 1 => CommitRule::All,
            2 => CommitRule::Any,
            _ => CommitRule::AtLeast(rng.between(1, wanted as u64) as u8),
        };
        let bulk = rng.chance(40);
        let window = if bulk {
            256 * 1024
        } else {
            rng.pick(&[16 * 1024, 16 * 1024, 32 * 1024])
        };
        let capacity = if bulk {
            512 * 1024
        } else {
            rng.pick(&[16 * 1024, 32 * 1024, 64 * 1024])
        };
        let payload_max = if bulk {
            100 * 1024
        } else {
            rng.pick(&[24, 200, 1200, 5000])
        };
        let links = if rng.chance(350) {
            LinkKind::Datagram
        } else {
            LinkKind::Stream
        };
        let latency = rng.pick(&[(20, 60), (50, 500), (500, 3000), (100, 30_000)]);
        let disk_us = rng.pick(&[(80, 300), (500, 3000), (5000, 20_000), (20_000, 200_000)]);
        let drops_cache = rng.chance(500);
        let mut actions = draw_faults(rng);
        // Without dropping the cache, damage that was repaired and whose sync then failed is past finding.
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
            address_lenders: (0..lenders).map(Some).collect(),
        }
    }

    /// A world in which appends are multicast, to at least two lenders.
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

    /// A world with a client that means harm.
    pub fn intruded(&mut self) {
        self.intruded = true;
        self.within_budget = false;
        let more = self.faults.len().max(2);
        self.faults.extend(vec![WorldFault::Intrude; more]);
    }

    /// A world in which nothing happens but what its story tells. Lenders are near, and their links whole.
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

    /// A world in which lenders have several addresses, and move.
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

    /// A quiet world in which one of three members that are multicast to is 5 to 50 ms away, there and back.
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

    /// A world in which lenders come and go faster than the disk and the slowest frame: acknowledgements
    /// outlive the windows that they speak of.
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

    /// Whether a view of this world's lenders can ever count: only then does a wait for members *and* disk
    /// end.
    pub fn can_count(&self) -> bool {
        let elsewhere = self.domains.iter().any(|domain| domain != "d0");
        let members = self.members_possible();
        let enough = members >= self.min.max(self.rule.copies(members));
        self.hostile.is_none() && !self.intruded && (self.one_domain || elsewhere) && enough
    }

    /// Members that a view can have when all is well: with fewer copies than members, fewer of those in the
    /// client's domain.
    pub fn members_possible(&self) -> usize {
        let here = self.domains.iter().filter(|domain| *domain == "d0").count();
        let room = match self.rule {
            CommitRule::All => here,
            rule => here.min(rule.copies(self.lenders) - 1),
        };
        let all = if self.one_domain {
            self.lenders
        } else {
            self.lenders - here + room
        };
        all.min(self.wanted)
    }
}

fn draw_faults(rng: &mut Rng) -> Vec<WorldFault> {
    let density = rng.pick(&[100, 250, 500]);
    FAULTS.into_iter().filter(|_| rng.chance(density)).collect()
}
