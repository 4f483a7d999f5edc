//! State of the fault injector: whether it injects faults, and when the next may come.

use netram_proto::time::{Nanos, Time};

use crate::event::WorldEvent;
use crate::kernel::SimKernel;

/// Time within which a world with a budget of faults takes one lender away at most.
const BUDGET_INTERVAL: Nanos = Nanos::from_ms(6000);

/// State of the fault injector.
pub(crate) struct Nemesis {
    /// Within budget, no further lender is taken away until this time.
    busy_until: Time,
    /// Whether no more faults happen.
    stopped: bool,
}

impl Nemesis {
    /// A fault injector whose first fault is planned.
    pub(crate) fn new(kernel: &mut SimKernel) -> Nemesis {
        let nemesis = Nemesis {
            busy_until: Time(0),
            stopped: false,
        };
        nemesis.plan(kernel);
        nemesis
    }

    /// Plans the next fault.
    pub(crate) fn plan(&self, kernel: &mut SimKernel) {
        let mean = kernel.profile.fault_interval.0;
        let delay = Nanos(kernel.rng.between(mean / 10, mean * 2));
        kernel.at(delay, WorldEvent::Nemesis);
    }

    /// Whether no more faults happen.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Ends fault injection.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Goes on injecting faults.
    pub(crate) fn resume(&mut self, kernel: &mut SimKernel) {
        self.stopped = false;
        self.plan(kernel);
    }

    /// Whether a lender was taken away within the last interval of the budget.
    pub(crate) fn is_busy(&self, now: Time) -> bool {
        now < self.busy_until
    }

    /// Begins an interval of the budget.
    pub(crate) fn take_budget(&mut self, now: Time) {
        self.busy_until = now + BUDGET_INTERVAL;
    }
}
