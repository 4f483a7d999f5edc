//! Clock, schedule, random source, trace and counters of a world that has events of its own.
//!
//! Every part of such a world gets the kernel passed in. Only `EventKernel::next_event` moves the clock.

use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};

use crate::coverage::Coverage;
use crate::queue::EventQueue;
use crate::rng::Rng;
use crate::trace::EventTrace;

/// Maximum number of events of one world, as a guard against an endless one.
const EVENTS_MAX: u64 = 3_000_000;

/// Clock, schedule, random source, trace and counters of a world with events `E` and parameters `P`.
pub(crate) struct EventKernel<E, P> {
    now: Time,
    queue: EventQueue<E>,
    /// The random source.
    pub(crate) rng: Rng,
    /// Parameters of this world.
    pub(crate) profile: P,
    planted: FaultSwitch,
    coverage: Coverage,
    trace: EventTrace,
    /// Time since which no more faults happen.
    calm_since: Option<Time>,
}

impl<E, P: std::fmt::Debug> EventKernel<E, P> {
    /// A kernel without events. The trace begins with the world's parameters.
    pub(crate) fn new(
        rng: Rng,
        profile: P,
        planted: FaultSwitch,
        mut trace: EventTrace,
    ) -> EventKernel<E, P> {
        let now = Time(1_000_000_000);
        trace.tell(now, || format!("{profile:?}"));
        EventKernel {
            now,
            queue: EventQueue::default(),
            rng,
            profile,
            planted,
            coverage: Coverage::default(),
            trace,
            calm_since: None,
        }
    }
}

impl<E, P> EventKernel<E, P> {
    /// The current time.
    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// The fault planted in the machines.
    pub(crate) fn planted(&self) -> FaultSwitch {
        self.planted
    }

    /// Time since which no more faults happen. `None`: they happen.
    pub(crate) fn calm_since(&self) -> Option<Time> {
        self.calm_since
    }

    /// Whether no more faults happen.
    pub(crate) fn is_calm(&self) -> bool {
        self.calm_since.is_some()
    }

    /// Ends all faults.
    pub(crate) fn calm_down(&mut self) {
        self.calm_since = Some(self.now);
    }

    /// Plans `event` for `at`.
    pub(crate) fn push(&mut self, at: Time, event: E) {
        self.queue.push(at, event);
    }

    /// Plans `event` for the time after `delay`.
    pub(crate) fn at(&mut self, delay: Nanos, event: E) {
        self.queue.push(self.now + delay, event);
    }

    /// The next event, at whose time the clock then stands.
    pub(crate) fn next_event(&mut self) -> E {
        let Some((at, event)) = self.queue.pop() else {
            unreachable!("a mark is always ahead")
        };
        self.trace.events += 1;
        assert!(self.trace.events < EVENTS_MAX, "the world does not end");
        self.now = self.now.max(at);
        event
    }

    /// Draws a time between two limits in µs.
    pub(crate) fn draw_us(&mut self, (low, high): (u64, u64)) -> Nanos {
        Nanos::from_us(self.rng.between(low, high))
    }

    /// Adds a line to the trace.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
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

    /// Ends the run. Returns the trace's fingerprint and the counters, among them the number of events.
    pub(crate) fn finish(mut self) -> (u64, Coverage) {
        self.coverage.add("events", self.trace.events);
        (self.trace.hash(), self.coverage)
    }
}
