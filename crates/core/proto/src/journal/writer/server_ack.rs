//! The journal of a node of a shared region: the region's server votes, and the node's disk does not.
//!
//! A node that was declared dead might still have a working disk. So an acknowledgement needs the members'
//! rule or the server's word that it has *kept* the record, and both can be denied to the node. The server
//! records durably that the node is being fenced, sends it nothing more, and fences its members.
//!
//! **Why the server finds everything that a fenced node acknowledged** ([`Recovery::of_node`]). Let V be the
//! newest view that is durable at the server, of n members, of which k must hold a record.
//!
//! 1. *At the node V counts, or an older view together with V.* A view replaces its predecessor only when the
//!    server has it (`JournalWriter::adopt`), so no view that counts is newer than V. While V is being stored
//!    both are demanded (`JournalWriter::advance`). Storing it began only when V's rule held everything
//!    acknowledged, or the server had kept it (`JournalWriter::may_store`).
//! 2. *So everything acknowledged and not kept is at k of V's members.* No member has dropped it: members are
//!    told to drop only what the server has kept (`JournalWriter::floor`), and a member of V is never asked
//!    to join again while it is one. This never times out: if the server is silent, the node waits.
//! 3. *Once n - k + 1 of V's members are fenced, k cannot hold anything new*, so the node's members
//!    acknowledge nothing more. Everything acknowledged before is at one of the fenced members, which is read
//!    after its fence.
//!
//! The local disk follows as usual, for a restart of the whole region. Members keep what either the disk or
//! the server lacks, so a node's own recovery may assume of members and disk what it may in any journal.
//!
//! [`Recovery::of_node`]: crate::journal::Recovery::of_node

use crate::id::Lsn;
use crate::planted::PlantedFault;
use crate::time::Time;
use crate::wire::ChainPoint;

use super::JournalWriter;

/// The voter that acknowledges beside the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Voter {
    /// The local disk: everything stable is acknowledged.
    #[default]
    Disk,
    /// The server of a shared region: everything that it has kept is acknowledged, and nothing that it lacks
    /// is dropped.
    Server,
}

/// The positions of a node's journal that the server of a shared region has reached, durably.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerAck {
    /// Everything below has been merged there. A record ends here.
    pub end: ChainPoint,
    /// The newest view that it has, by its number.
    pub version: u64,
}

impl JournalWriter {
    /// Handles a report of the server, for a shared journal only. An older report may arrive later; it never
    /// lowers a position.
    ///
    /// The driver knows that a record of this epoch ends at `said.end`.
    pub fn on_server_ack(&mut self, said: ServerAck, now: Time) {
        let tail = self.tail;
        let Some(known) = &mut self.server_ack else {
            unreachable!("a journal whose disk votes has no server")
        };
        assert!(said.end.lsn <= tail, "the server keeps what was appended");
        let before = *known;
        if said.end.lsn > known.end.lsn {
            known.end = said.end;
        }
        known.version = known.version.max(said.version);
        if before != *known {
            self.settle(now);
        }
    }

    /// The last report of a shared journal's server; `None` if the disk votes.
    pub fn server_ack(&self) -> Option<ServerAck> {
        self.server_ack
    }

    /// The number of the view that is durable here and does not count yet because the server lacks it.
    pub fn view_for_server(&self) -> Option<u64> {
        let durable = self.proposal.is_some_and(|proposal| proposal.durable);
        (self.server_ack.is_some() && durable && !self.next_view_is_acked()).then_some(self.version + 1)
    }

    /// Everything below is on the local disk for good. For a shared journal the disk may have more, which the
    /// node may never get acknowledged: it must not be applied anywhere.
    pub fn stable_for_good(&self) -> Lsn {
        match self.server_ack {
            None => self.stable.lsn,
            Some(_) => self.stable.lsn.min(self.acked),
        }
    }

    /// Whether `bytes` more can be appended: members hold whatever the server lacks, and have space for one
    /// window. Where the disk votes, the ring is the limit.
    pub fn has_room(&self, bytes: u64) -> bool {
        let needed = self.tail.plus(bytes).since(self.floor().lsn);
        self.server_ack.is_none() || needed <= self.config.window_bytes
    }

    /// The LSN up to which the voter beside the members has acknowledged.
    pub(super) fn voter_acked(&self) -> Lsn {
        match self.server_ack {
            None => self.stable.lsn,
            Some(_) if self.planted.is(PlantedFault::DiskVotes) => self.stable.lsn,
            Some(server) => server.end.lsn,
        }
    }

    /// Members need to hold nothing below this: it is stable and, for a shared journal, kept by the server. A
    /// new window begins here.
    pub(super) fn floor(&self) -> ChainPoint {
        match self.server_ack {
            Some(server)
                if server.end.lsn < self.stable.lsn
                    && !self.planted.is(PlantedFault::DroppedBeforeServer) =>
            {
                server.end
            }
            _ => self.stable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::id::Epoch;
    use crate::journal::CommitRule;
    use crate::time::Nanos;
    use crate::wire::{Flag, FrameHeader, FrameKind, RefusalReason};

    fn link(lsn: u64) -> ChainPoint {
        ChainPoint {
            lsn: Lsn(lsn),
            chain: 7,
        }
    }

    impl Bench {
        pub(in super::super) fn kept(&mut self, lsn: u64, version: u64) {
            let end = link(lsn);
            self.writer.on_server_ack(ServerAck { end, version }, self.now);
        }

        fn stable(&mut self, lsn: u64) {
            self.writer.on_stable(link(lsn), self.now);
        }

        fn acked(&self) -> u64 {
            self.writer.acked().0
        }
    }

    /// A shared journal with two lenders. One is a member under view 2, which the server has.
    fn bench() -> Bench {
        let mut bench = Bench::shared(2, 1, CommitRule::All);
        (0..2).for_each(|index| bench.connect(index, index as u64));
        bench.join(0);
        bench.store_view();
        assert!(bench.writer.view().is_empty(), "the server does not have it");
        assert_eq!(bench.writer.view_for_server(), Some(2));
        bench.kept(0, 2);
        assert!(bench.writer.view().has(0));
        assert_eq!(bench.writer.view_for_server(), None);
        bench
    }

    #[test]
    fn members_and_the_server_acknowledge_and_the_disk_never_does() {
        let mut bench = bench();
        bench.append(100);
        bench.stable(100);
        assert_eq!((bench.acked(), bench.writer.stable_for_good()), (0, Lsn(0)));
        bench.ack(0, 40, 40);
        assert_eq!((bench.acked(), bench.writer.stable_for_good()), (40, Lsn(40)));
        bench.kept(80, 2);
        assert_eq!(bench.acked(), 80);
        bench.ack(0, 100, 100);
        assert_eq!(bench.acked(), 100);
    }

    #[test]
    fn the_server_may_be_ahead_of_the_disk() {
        let mut bench = bench();
        bench.append(100);
        bench.kept(100, 2);
        assert_eq!((bench.acked(), bench.writer.stable()), (100, Lsn(0)));
        assert_eq!(
            told(&mut bench),
            Lsn(0),
            "the local log must be whole at a restart"
        );
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
    fn members_keep_what_the_server_lacks_however_long_it_is_silent() {
        let mut bench = bench();
        bench.append(100);
        bench.ack(0, 100, 100);
        bench.stable(100);
        bench.kept(40, 2);
        for _ in 0..20 {
            bench.wait(Nanos::from_ms(1000));
            assert_eq!(told(&mut bench), Lsn(40));
        }
    }

    #[test]
    fn appends_wait_for_the_server_while_members_have_no_space() {
        let mut bench = bench();
        bench.append(1 << 20);
        bench.stable(1 << 20);
        assert!(!bench.writer.has_room(8));
        bench.kept(8, 2);
        assert!(bench.writer.has_room(8) && !bench.writer.has_room(16));
    }

    #[test]
    fn a_view_waits_for_the_server_without_a_time_limit_under_both_rules() {
        let mut bench = bench();
        bench.append(100);
        bench.ack(0, 100, 100);
        bench.stable(100);
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(501));
        bench.join(1);
        bench.drain(1);
        bench.ack(1, 100, 100);
        bench.store_view();
        bench.append(200);
        bench.ack(1, 200, 200);
        bench.stable(200);
        bench.wait(Nanos::from_ms(60_000));
        assert_eq!(bench.acked(), 100, "the lost member's rule is still demanded");
        assert!(bench.writer.view().has(0));
        bench.kept(0, 3);
        assert!(bench.writer.view().has(1) && !bench.writer.view().has(0));
        assert_eq!(bench.acked(), 200);
    }

    #[test]
    fn a_view_with_too_few_members_is_stored_once_the_server_has_everything_acknowledged() {
        let mut bench = Bench::shared(1, 1, CommitRule::All);
        bench.connect(0, 0);
        bench.join(0);
        bench.store_view();
        bench.kept(0, 2);
        bench.append(100);
        bench.ack(0, 100, 100);
        bench.stable(100);
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(501));
        assert!(!bench.writer.view_pending(), "the view would protect less");
        bench.kept(100, 2);
        bench.store_view();
        bench.append(108);
        bench.stable(108);
        assert_eq!(bench.acked(), 100);
        bench.kept(108, 3);
        assert_eq!(bench.acked(), 108);
        assert!(bench.writer.view().is_empty());
    }

    #[test]
    fn a_new_window_begins_at_the_servers_end() {
        let mut bench = bench();
        bench.append(100);
        bench.ack(0, 100, 100);
        bench.stable(100);
        bench.kept(40, 2);
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(501));
        let join = bench.next(1).expect("an invitation");
        assert_eq!((join.kind, join.lsn, join.mark), (FrameKind::Join, Lsn(40), 7));
        bench.ack(1, 40, 40);
        let append = bench.next(1).expect("an append");
        assert_eq!((append.lsn, append.mark, append.stable), (Lsn(40), 7, Lsn(40)));
        assert_eq!(append.flags & Flag::FRESH, Flag::FRESH);
    }

    #[test]
    fn a_fenced_node_acknowledges_nothing() {
        let mut bench = bench();
        bench.append(100);
        let refused = FrameHeader {
            flags: RefusalReason::Fenced as u8,
            epoch: Epoch(70_000),
            ..FrameHeader::new(FrameKind::Refuse)
        };
        bench.say(0, refused, &[]);
        bench.stable(100);
        bench.kept(100, 2);
        bench.ack(0, 100, 100);
        assert_eq!(bench.acked(), 0);
        assert!(!bench.writer.may_still_be_acked(Lsn(100)));
    }

    #[test]
    fn when_the_disk_has_failed_the_server_may_still_acknowledge() {
        let mut bench = bench();
        bench.append(100);
        bench.writer.on_disk_failed();
        assert!(bench.writer.may_still_be_acked(Lsn(100)));
        bench.kept(100, 2);
        assert_eq!(bench.acked(), 100);
    }
}
