//! Acknowledgements of a data lender in service: members keep what it lacks, and a view counts only when it
//! has it.
//!
//! A record leaves the members' memories when it is on *both* disks, so that one disk may be lost. Nothing
//! else waits for the data lender. A member that would have no space for the next bytes is told to drop what
//! is stable. A data lender that is silent for too long is out of service.

use crate::id::{Epoch, Lsn};
use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};

use super::{JournalWriter, LenderIndexSet};

/// The positions that a data lender in service has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaAck {
    /// Everything below is durable there. A record ends here.
    pub lsn: Lsn,
    /// The newest view that is durable there, by its number in this epoch.
    pub version: u64,
}

impl JournalWriter {
    /// Handles a report of the data lender; `None` if there is none in service. It must be repeated within
    /// twice `detect`, or the data lender counts as out of service.
    pub fn on_replica_ack(&mut self, kept: Option<ReplicaAck>, now: Time) {
        let before = self.replica_ack.map(|(kept, _)| kept);
        if kept.is_some() {
            // It has a view of this epoch, and so all earlier bytes of this history.
            self.epochs.forget_before(self.epoch);
        }
        self.replica_ack = kept.map(|kept| (kept, now));
        if before != kept {
            self.settle(now);
        }
    }

    /// Handles a fence at the data lender by epoch `seen`: the volume was restored or taken over elsewhere.
    pub fn on_replica_fenced(&mut self, seen: Epoch) {
        self.fenced = self.fenced.max(Some(seen));
    }

    /// The last report of the data lender in service.
    pub fn replica_ack(&self) -> Option<ReplicaAck> {
        self.replica_ack.map(|(kept, _)| kept)
    }

    /// Takes a data lender that has been silent for too long out of service.
    pub(super) fn expire_replica_ack(&mut self, now: Time) {
        let patience = Nanos(self.config.timing.detect.0 * 2);
        if self.replica_ack.is_some_and(|(_, at)| now.since(at) > patience) {
            self.replica_ack = None;
        }
    }

    /// The LSN below which a member may drop bytes when it is sent bytes up to `end`: what is on both disks,
    /// or what is stable if its window would overflow otherwise.
    pub(super) fn droppable(&self, end: Lsn) -> Lsn {
        let stable = self.stable.lsn;
        if self.server_ack.is_some() {
            return self.floor().lsn;
        }
        match self.replica_ack {
            Some((kept, _)) if kept.lsn < stable => {
                let fits = end.since(kept.lsn) <= self.config.window_bytes;
                if fits { kept.lsn } else { stable }
            }
            _ => stable,
        }
    }

    /// Whether a view of `set` suffices for recovery together with the data lender, which has what the
    /// members' windows lack.
    pub(super) fn is_backed(&self, set: LenderIndexSet) -> bool {
        let kept = match (self.server_ack, self.replica_ack) {
            (Some(server), _) => server.end.lsn,
            (None, Some((kept, _))) => kept.lsn,
            (None, None) => return true,
        };
        set.iter().all(|index| self.lenders[index].window_start <= kept)
    }

    /// Whether the data lender has the view after the present one, or is not in service. The server of a
    /// shared journal is always in service.
    pub(super) fn next_view_is_acked(&self) -> bool {
        match self.server_ack {
            Some(server) => server.version > self.version || self.planted.is(PlantedFault::ViewBeforeServer),
            None => self
                .replica_ack
                .is_none_or(|(kept, _)| kept.version > self.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::journal::CommitRule;
    use crate::wire::{ChainPoint, FrameKind};

    const KEPT: ReplicaAck = ReplicaAck {
        lsn: Lsn(40),
        version: 2,
    };

    fn stable(lsn: u64) -> ChainPoint {
        ChainPoint {
            lsn: Lsn(lsn),
            chain: 1,
        }
    }

    /// A writer of one member that holds 100 bytes; the disk has 60 of them, the data lender 40.
    fn bench() -> Bench {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        bench.writer.on_replica_ack(Some(KEPT), bench.now);
        bench.append(100);
        bench.ack(0, 100, 100);
        bench.writer.on_stable(stable(60), bench.now);
        bench
    }

    fn told(bench: &mut Bench) -> Lsn {
        let tail = bench.writer.tail().plus(8);
        bench.writer.on_append(tail);
        let frame = bench.next(0).expect("an append");
        assert_eq!(frame.kind, FrameKind::Append);
        bench.ack(0, tail.0, tail.0);
        frame.stable
    }

    #[test]
    fn members_keep_what_the_data_lender_lacks() {
        let mut bench = bench();
        assert_eq!(told(&mut bench), Lsn(40));
        bench.wait(Nanos::from_ms(150));
        let ping = bench.next(0);
        assert!(
            ping.is_none_or(|ping| ping.stable == Lsn(40)),
            "nor do pings say more"
        );
        bench.writer.on_replica_ack(None, bench.now);
        assert_eq!(told(&mut bench), Lsn(60), "out of service, the disk alone counts");
    }

    #[test]
    fn a_member_whose_window_would_overflow_may_drop_what_is_stable() {
        let mut bench = bench();
        bench.writer.on_append(Lsn(40 + (1 << 20)));
        let mut last = Lsn(0);
        for _ in 0..40 {
            while let Some(frame) = bench.next(0) {
                last = frame.stable;
            }
            let sent = bench.writer.lenders[0].sent.0;
            bench.ack(0, 100, sent);
        }
        assert_eq!(last, Lsn(40), "it just fits");
        bench.writer.on_append(Lsn(48 + (1 << 20)));
        assert_eq!(bench.next(0).map(|frame| frame.stable), Some(Lsn(60)));
    }

    #[test]
    fn a_silent_data_lender_is_out_of_service() {
        let mut bench = bench();
        bench.wait(Nanos::from_ms(1000));
        assert_eq!(bench.writer.replica_ack(), Some(KEPT));
        bench.wait(Nanos::from_ms(1));
        assert_eq!(bench.writer.replica_ack(), None);
    }

    /// The second member's window begins at the disk's end. Its view waits until the data lender has reached
    /// that, and then until the data lender has the view.
    #[test]
    fn a_view_counts_only_when_the_data_lender_has_it_too() {
        let mut bench = bench();
        let member_lost = |bench: &mut Bench| {
            bench.writer.on_lost(0, bench.now);
            bench.wait(Nanos::from_ms(501));
        };
        member_lost(&mut bench);
        bench.writer.on_replica_ack(Some(KEPT), bench.now);
        bench.join(1);
        bench.drain(1);
        bench.ack(1, 100, 100);
        assert!(
            !bench.writer.view_pending(),
            "the data lender lacks what the window lacks"
        );
        let caught_up = ReplicaAck {
            lsn: Lsn(60),
            version: 2,
        };
        bench.writer.on_replica_ack(Some(caught_up), bench.now);
        bench.store_view();
        assert!(bench.writer.view().has(0), "the data lender does not have it");
        bench.writer.on_replica_ack(
            Some(ReplicaAck {
                version: 3,
                ..caught_up
            }),
            bench.now,
        );
        assert!(bench.writer.view().has(1) && !bench.writer.view().has(0));
    }

    #[test]
    fn a_view_does_not_wait_for_a_data_lender_that_is_silent() {
        let mut bench = bench();
        bench.writer.on_lost(0, bench.now);
        bench.writer.on_stable(stable(100), bench.now);
        bench.wait(Nanos::from_ms(501));
        bench
            .writer
            .on_replica_ack(Some(ReplicaAck { lsn: Lsn(60), ..KEPT }), bench.now);
        bench.store_view();
        assert!(bench.writer.view().has(0));
        bench.wait(Nanos::from_ms(1001));
        assert!(!bench.writer.view().has(0));
    }

    #[test]
    fn a_restored_volume_fences_its_old_writer() {
        let mut bench = bench();
        bench.writer.on_replica_fenced(Epoch(5));
        bench.writer.on_stable(stable(100), bench.now);
        assert_eq!(bench.writer.fenced(), Some(Epoch(5)));
        assert_eq!(bench.writer.acked(), Lsn(100), "as before");
        bench.writer.on_append(Lsn(200));
        assert_eq!(bench.next(0), None);
    }
}
