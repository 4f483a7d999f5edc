//! Events of a world of deposits, and its kernel.

use netram_proto::time::Nanos;

use super::profile::DepositProfile;
use crate::event::FrameDirection;
use crate::event_kernel::EventKernel;

/// A lender's lease of a deposit. Some absences are as long.
pub(super) const LEASE: Nanos = Nanos::from_ms(4000);

/// Clock, schedule, random source, trace and counters of a world of deposits.
pub(super) type DepositKernel = EventKernel<Event, DepositProfile>;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
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
    LenderUp {
        lender: usize,
    },
    Stop {
        lender: usize,
    },
    PressureEnd {
        lender: usize,
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

impl DepositKernel {
    /// Draws the latency of one way.
    pub(super) fn latency(&mut self) -> Nanos {
        self.draw_us(self.profile.latency_us)
    }
}
