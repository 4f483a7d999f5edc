//! Parameters of one seed's world of deposits, drawn once.

use netram_proto::time::Nanos;

use crate::rng::Rng;

/// Faults of a world of deposits, see `nemesis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DepositFault {
    /// A connection breaks.
    Break,
    /// An owner and a lender cannot reach each other, up to longer than the lease.
    Partition,
    /// A lender stands still.
    Pause,
    /// A lender dies and loses its memory.
    Kill,
    /// A lender announces its withdrawal and stops a moment later.
    WithdrawLender,
    /// A lender reclaims some of its lent slots for a while.
    PressLender,
    /// A lender has less room than before, or more.
    ResizeLender,
    /// An owner dies; another begins in its place.
    KillOwner,
    /// A write to a spill file fails.
    DiskFails,
    /// A write to a spill file is done by half and reported as done.
    DiskTears,
    /// A page of a spill file cannot be read.
    DiskLoses,
    /// A disk stands still.
    DiskStalls,
    /// A disk has less room than before, or more.
    DiskRoom,
}

const FAULTS: [DepositFault; 13] = [
    DepositFault::Break,
    DepositFault::Partition,
    DepositFault::Pause,
    DepositFault::Kill,
    DepositFault::WithdrawLender,
    DepositFault::PressLender,
    DepositFault::ResizeLender,
    DepositFault::KillOwner,
    DepositFault::DiskFails,
    DepositFault::DiskTears,
    DepositFault::DiskLoses,
    DepositFault::DiskStalls,
    DepositFault::DiskRoom,
];

#[derive(Clone, Debug)]
pub(super) struct DepositProfile {
    pub(super) arenas: usize,
    pub(super) lenders: usize,
    pub(super) copies: usize,
    pub(super) pages: u32,
    /// Number of slots that each lender has in all.
    pub(super) room: Vec<u32>,
    /// Number of slots that an owner wants of each lender.
    pub(super) slots_max: u32,
    /// Number of slots that an owner requests at once.
    pub(super) grow: u32,
    /// Maximum slots of an owner's spill file; 0 if it has none.
    pub(super) spill: u32,
    /// Index of a lender that returns false bytes, or denies having a page.
    pub(super) hostile: Option<usize>,
    /// Whether faults only ever destroy pages that have another copy, so that no page may be lost.
    pub(super) within_budget: bool,
    /// Latency of one way through the network, from and to, in µs.
    pub(super) latency_us: (u64, u64),
    /// Longest time between two operations of a program, in µs.
    pub(super) pace_us: u64,
    pub(super) faults: Vec<DepositFault>,
    /// Mean time between two faults.
    pub(super) fault_interval: Nanos,
    pub(super) run_time: Nanos,
}

impl DepositProfile {
    pub(super) fn draw(rng: &mut Rng) -> DepositProfile {
        let within = rng.chance(500);
        let arenas = rng.between(1, 2) as usize;
        let spills = rng.chance(500);
        let lenders = rng.between(
            if spills {
                0
            } else if within {
                3
            } else {
                1
            },
            4,
        ) as usize;
        let pages = rng.between(4, 60) as u32;
        let ample = within || rng.chance(600);
        let few = pages.max(8) / 2;
        let slots_max = if ample { 2 * pages + 8 } else { pages };
        let room = |rng: &mut Rng| match ample {
            true => slots_max * arenas as u32,
            false => rng.between(u64::from(few), u64::from(2 * pages)) as u32,
        };
        let density = rng.pick(&[300, 600, 1000]);
        let mut actions: Vec<DepositFault> = FAULTS.into_iter().filter(|_| rng.chance(density)).collect();
        actions.retain(|action| match action {
            // These faults may lose pages that have no other whole copy.
            DepositFault::DiskRoom | DepositFault::DiskTears | DepositFault::DiskLoses => !within,
            DepositFault::ResizeLender => !within && lenders > 0,
            DepositFault::DiskFails | DepositFault::DiskStalls | DepositFault::KillOwner => true,
            _ => lenders > 0,
        });
        let low = rng.pick(&[20, 100, 2000]);
        // Long enough for a series of broken links to keep a lender away for its whole lease.
        let longest = if within { 4000 } else { 12_000 };
        DepositProfile {
            arenas,
            lenders,
            copies: if within || rng.chance(700) { 2 } else { 1 },
            pages,
            room: (0..lenders).map(|_| room(rng)).collect(),
            slots_max,
            grow: rng.pick(&[1, 8, 40, 4096]),
            spill: match spills {
                true if within => slots_max,
                true => rng.pick(&[few, slots_max]),
                false => 0,
            },
            hostile: (!within && lenders > 0 && rng.chance(250)).then(|| rng.index(lenders)),
            within_budget: within,
            latency_us: (low, rng.pick(&[1, 3, 20]) * low),
            pace_us: rng.pick(&[1000, 5000, 30_000]),
            faults: actions,
            fault_interval: Nanos::from_ms(rng.pick(&[30, 150, 800])),
            run_time: Nanos::from_ms(rng.pick(&[300, 1000, 4000, longest])),
        }
    }
}
