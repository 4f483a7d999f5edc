//! The simulation kernel: clock, schedule, random source, trace and counters of one world.
//!
//! Every part of the world gets the kernel passed in. Only `SimKernel::next_event` moves the clock.

use netram_proto::id::JournalId;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use crate::coverage::Coverage;
use crate::event::WorldEvent;
use crate::profile::{LinkKind, WorldProfile};
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::EventTrace;

/// Interval at which a process handles its timers.
pub(crate) const TICK: Nanos = Nanos::from_ms(25);
/// Maximum number of events of one world, as a guard against an endless one.
const EVENTS_MAX: u64 = 3_000_000;

/// Clock, schedule, random source, trace and counters of a world.
pub struct SimKernel {
    now: Time,
    queue: EventQueue<WorldEvent>,
    /// The random source.
    pub rng: Rng,
    /// Parameters of this world.
    pub profile: WorldProfile,
    journal: JournalId,
    planted: FaultSwitch,
    coverage: Coverage,
    trace: EventTrace,
    /// Number of calls of programs since the last event.
    calls: u32,
    /// Disks take `slowness` times as long until this time.
    slow_until: Time,
    slowness: u64,
}

impl SimKernel {
    /// A kernel without events, for a world whose journal is `journal`.
    pub fn new(
        rng: Rng,
        profile: WorldProfile,
        journal: JournalId,
        planted: FaultSwitch,
        trace: EventTrace,
    ) -> SimKernel {
        SimKernel {
            now: Time(1_000_000_000),
            queue: EventQueue::default(),
            rng,
            profile,
            journal,
            planted,
            coverage: Coverage::default(),
            trace,
            calls: 0,
            slow_until: Time(0),
            slowness: 1,
        }
    }

    /// The current time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The journal.
    pub fn journal(&self) -> JournalId {
        self.journal
    }

    /// The fault planted in the machines.
    pub fn planted(&self) -> FaultSwitch {
        self.planted
    }

    /// Whether links between clients and lenders are streams.
    pub(crate) fn is_stream(&self) -> bool {
        self.profile.links == LinkKind::Stream
    }

    /// Plans `event` for `at`.
    pub(crate) fn push(&mut self, at: Time, event: WorldEvent) {
        self.queue.push(at, event);
    }

    /// Plans `event` for the time after `delay`.
    pub(crate) fn at(&mut self, delay: Nanos, event: WorldEvent) {
        self.queue.push(self.now + delay, event);
    }

    /// The next event, at whose time the clock then stands. `None`: no event is left; time passes all the
    /// same.
    pub(crate) fn next_event(&mut self) -> Option<WorldEvent> {
        self.calls = 0;
        let Some((at, event)) = self.queue.pop() else {
            self.now = self.now + TICK;
            return None;
        };
        assert!(self.trace.events < EVENTS_MAX, "the world does not end");
        self.now = self.now.max(at);
        Some(event)
    }

    /// Counts a call of a program. Returns the number of calls since the last event.
    pub(crate) fn count_call(&mut self) -> u32 {
        self.calls += 1;
        self.calls
    }

    /// Adds a line to the trace.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        self.trace.tell(self.now, line);
    }

    /// Mixes an event into the trace's fingerprint.
    pub(crate) fn mark(&mut self, what: u64, detail: u64) {
        self.trace.mark(self.now, what, detail);
    }

    /// Counts one more event.
    pub(crate) fn hit(&mut self, name: &'static str) {
        self.coverage.hit(name);
    }

    /// Counts `count` more events.
    pub(crate) fn add(&mut self, name: &'static str, count: u64) {
        self.coverage.add(name, count);
    }

    /// Number of events counted under `name`.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.coverage.get(name)
    }

    /// Draws the latency of one way between a client and a lender that is not distant.
    pub(crate) fn link_latency(&mut self) -> Nanos {
        let (low, high) = self.profile.latency_us;
        Nanos(self.rng.between(low * 1000, high * 1000))
    }

    /// Draws the latency of one way to a server or a data lender, in whole microseconds.
    pub(crate) fn service_latency(&mut self) -> Nanos {
        let (low, high) = self.profile.latency_us;
        Nanos::from_us(self.rng.between(low, high))
    }

    /// Makes operations on disks take `times` times as long, until a time.
    pub(crate) fn slow_disks(&mut self, times: u64, until: Time) {
        (self.slowness, self.slow_until) = (times, until);
    }

    /// Draws the time that a write with its sync takes.
    pub(crate) fn disk_time(&mut self) -> Nanos {
        let (low, high) = self.profile.disk_us;
        let us = self.rng.between(low, high);
        let times = if self.now < self.slow_until {
            self.slowness
        } else {
            1
        };
        Nanos::from_us(us * times)
    }

    /// Ends the run. Returns the trace's fingerprint and the counters, among them the number of events.
    pub(crate) fn finish(&mut self) -> (u64, Coverage) {
        self.coverage.add("events", self.trace.events);
        (self.trace.hash(), core::mem::take(&mut self.coverage))
    }
}
