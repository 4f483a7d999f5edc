//! Silence of the server. A link may carry nothing any more and look whole for a quarter of an hour: TCP
//! gives up no earlier. So the node counts for how long the server has owed an answer and nothing has come,
//! and then goes on over another link.
//!
//! Half a lease is enough: questions go every quarter, so that the node is back before its server gives it
//! up. A node that stood still counts little of that time: the answers may be waiting in its sockets.

use super::{RegionNode, Wire};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};

/// A lease has so many parts. One look counts for one of them at most, however long ago the last one was.
const LEASE_PARTS: u64 = 8;
/// After so many of them the link is given up.
const SILENT_PARTS_MAX: u64 = 4;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SilenceTimer {
    silent_for: Nanos,
    looked_at: Time,
    planted: FaultSwitch,
}

impl SilenceTimer {
    /// Something came, or there is nothing that could come.
    pub(super) fn end(&mut self) {
        self.silent_for = Nanos(0);
    }

    /// Time has passed in which the server owed an answer, or did not.
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

    /// Something has come over the present link, but no whole message yet; or the driver takes nothing of it
    /// for now.
    pub fn on_partial_message(&mut self) {
        self.silence.end();
    }

    /// The present link is of no use any more, though nobody has said so: the driver gives it up, and makes
    /// another one. To be asked when everything has been taken that came.
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
