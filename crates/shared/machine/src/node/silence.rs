//! Detects a silent server. TCP may take a quarter of an hour to notice a dead link. So the node adds up the
//! time for which the server owes an answer and nothing has come. Then it reconnects.
//!
//! Half a lease is the limit: pings go every quarter, so the node is back before its server gives it up. Time
//! in which the node itself stood still counts little, since the answers may be waiting in its sockets.

use super::{RegionNode, Wire};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};

/// Number of parts of a lease. One check counts for at most one part, however long ago the last one was.
const LEASE_PARTS: u64 = 8;
/// Number of silent parts after which the link is given up.
const SILENT_PARTS_MAX: u64 = 4;

/// Time for which the server has been silent; see the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SilenceTimer {
    silent_for: Nanos,
    looked_at: Time,
    planted: FaultSwitch,
}

impl SilenceTimer {
    /// Notes that something came, or that nothing is owed.
    pub(super) fn end(&mut self) {
        self.silent_for = Nanos(0);
    }

    /// Counts the time since the last check if the server owed an answer.
    fn look(&mut self, now: Time, lease: Nanos, owed: bool) {
        let passed = now.since(self.looked_at).min(Nanos(lease.0 / LEASE_PARTS));
        self.looked_at = now;
        match owed {
            true => self.silent_for = Nanos(self.silent_for.0 + passed.0),
            false => self.end(),
        }
    }

    fn is_too_long(&self, lease: Nanos) -> bool {
        let long = self.silent_for >= Nanos(lease.0 / LEASE_PARTS * SILENT_PARTS_MAX);
        long && !self.planted.is(PlantedFault::SilenceTrusted)
    }
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// Plants a fault, for the simulator.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.silence.planted = planted;
    }

    /// Notes that bytes came over the present link but no whole message yet, or that the driver reads nothing
    /// for now.
    pub fn on_partial_message(&mut self) {
        self.silence.end();
    }

    /// Whether to give up the present link and open another, because it has been silent for too long. Ask
    /// when everything that came has been handled.
    pub fn is_link_silent(&self) -> bool {
        let lease = self.identity.map(|identity| identity.lease);
        self.wire != Wire::Down && lease.is_some_and(|lease| self.silence.is_too_long(lease))
    }

    pub(super) fn listen(&mut self, now: Time) {
        let Some(identity) = self.identity else {
            return;
        };
        let owed = match self.wire {
            Wire::Down => false,
            Wire::Introduced => true,
            Wire::Up => !self.pings.is_empty(),
        };
        self.silence.look(now, identity.lease, owed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Nanos = Nanos::from_ms(800);

    fn ms(ms: u64) -> Time {
        Time(Nanos::from_ms(ms).0)
    }

    fn looked(times: impl IntoIterator<Item = u64>, owed: bool) -> SilenceTimer {
        let mut silence = SilenceTimer::default();
        times.into_iter().for_each(|at| silence.look(ms(at), LEASE, owed));
        silence
    }

    #[test]
    fn half_a_lease_without_a_word_that_is_owed_is_too_long() {
        assert!(!looked((1000..1400).step_by(10), true).is_too_long(Nanos(LEASE.0 + LEASE.0 / 4)));
        assert!(
            !looked((1000..=1290).step_by(10), true).is_too_long(LEASE),
            "the first look counts for a part"
        );
        assert!(looked((1000..=1300).step_by(10), true).is_too_long(LEASE));
        assert!(
            !looked((1000..9000).step_by(10), false).is_too_long(LEASE),
            "nothing is owed"
        );
    }

    #[test]
    fn a_word_ends_it() {
        let mut silence = looked((1000..=1290).step_by(10), true);
        silence.end();
        silence.look(ms(1390), LEASE, true);
        assert!(!silence.is_too_long(LEASE));
    }

    #[test]
    fn time_in_which_the_node_stood_still_is_no_silence() {
        let mut silence = looked([1000], true);
        silence.end();
        silence.look(ms(600_000), LEASE, true);
        assert!(!silence.is_too_long(LEASE), "the answers may be in its sockets");
    }
}
