//! Events of a region's world, its kernel, and the clocks of its machines.

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::server::{LinkEnd, SessionId};

use super::profile::RegionProfile;
use crate::event::FrameDirection;
use crate::event_kernel::EventKernel;

/// Clock, schedule, random source, trace and counters of a region's world.
pub(super) type RegionKernel = EventKernel<Event, RegionProfile>;

/// An event of this world.
#[derive(Debug)]
pub(super) enum Event {
    Connected { conn: usize },
    Frame { conn: usize, way: FrameDirection },
    Closed { conn: usize },
    Query { query: usize },
    LenderUp { lender: usize },
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

impl RegionKernel {
    /// Plans `event` for just after `ms` milliseconds.
    pub(super) fn after_ms(&mut self, ms: u64, event: Event) {
        self.at(Nanos(Nanos::from_ms(ms).0 + 1), event);
    }

    /// Draws the latency of one way.
    pub(super) fn latency(&mut self) -> Nanos {
        self.draw_us(self.profile.latency_us)
    }

    /// Draws the time that a write with its sync takes.
    pub(super) fn disk_time(&mut self) -> Nanos {
        self.draw_us(self.profile.disk_us)
    }
}

/// A machine's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    start: u64,
    permille: u64,
}

impl Clock {
    /// A clock that is fast or slow by up to the world's drift.
    pub(super) fn draw(kernel: &mut RegionKernel) -> Clock {
        let drift = kernel.profile.drift_permille;
        Clock {
            start: kernel.rng.between(1, 1 << 40),
            permille: kernel.rng.between(1000 - drift, 1000 + drift),
        }
    }

    /// The time that it shows.
    pub(super) fn local(&self, now: Time) -> Time {
        Time(self.start + now.0 / 1000 * self.permille)
    }
}
