//! An idle journal is clean (rule 19): its durable view states that everything it ever acknowledged is on the
//! local disk, so recovery needs no member.
//!
//! The view of a clean journal names its members. They keep what they hold, but their acknowledgements do not
//! count. The first append proposes the same view as a counting one; until that is durable, the disk
//! acknowledges. A crash at any point loses nothing, as with every change of the view: while one view
//! replaces the other both are demanded, and the disk alone satisfies a clean view.

use crate::id::Lsn;
use crate::planted::PlantedFault;
use crate::time::Time;

use super::{JournalWriter, LenderIndexSet, ViewTerms};

/// The time for which nothing has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdleState {
    /// End of the log at the last check, and the time since when it has stayed there with everything on the
    /// disk and at the data lender.
    since: (Lsn, Time),
    /// Whether that time has been long enough.
    idle: bool,
}

impl JournalWriter {
    /// Whether members' acknowledgements count: there are enough members, and the durable view does not mark
    /// the journal clean.
    pub fn counting(&self) -> bool {
        self.counts(self.view, self.terms) && self.clean.is_none()
    }

    /// The LSN up to which `set` satisfies the rule of `terms`, if a view of it with this `clean` counts.
    pub(super) fn counted(&self, set: LenderIndexSet, terms: ViewTerms, clean: Option<Lsn>) -> Option<Lsn> {
        if clean.is_some() && !self.planted.is(PlantedFault::CountsWhileClean) {
            return None;
        }
        self.rule_lsn(set, terms)
    }

    /// Whether a view of `set` with these `terms` should mark the journal clean. A shared journal
    /// never is: its views count only when its server has them, and an absent server must not keep members
    /// from acknowledging.
    pub(super) fn wants_clean(&self, set: LenderIndexSet, terms: ViewTerms) -> bool {
        self.server_ack.is_none()
            && self.idle_state.idle
            && self.idle_state.since.0 == self.tail
            && self.is_everywhere()
            && self.counts(set, terms)
    }

    /// Updates the idle state at `now`.
    pub(super) fn update_idle(&mut self, now: Time) {
        if !self.is_everywhere() || self.idle_state.since.0 != self.tail {
            self.idle_state = IdleState {
                since: (self.tail, now),
                idle: false,
            };
        } else if now.since(self.idle_state.since.1) >= self.config.timing.idle {
            self.idle_state.idle = true;
        }
    }

    /// Reconsiders the view after an append to a clean journal, or while a view is being stored.
    #[cold]
    pub(super) fn wake(&mut self) {
        if self.fenced.is_none() {
            self.propose();
        }
    }

    /// Whether everything acknowledged, now or later, is on the disk and at the data lender in service.
    fn is_everywhere(&self) -> bool {
        if self.planted.is(PlantedFault::CleanTooEarly) {
            return self.acked >= self.tail;
        }
        let kept = self.replica_ack.is_none_or(|(kept, _)| kept.lsn >= self.tail);
        self.stable.lsn >= self.tail && kept
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::journal::{CommitRule, DiskWaitReason};
    use crate::time::Nanos;
    use crate::wire::{ChainPoint, FrameHeader, FrameKind};

    impl Bench {
        /// Has all lenders answer pings, with the positions that they acknowledged before.
        pub(in super::super) fn answer_pings(&mut self) {
            for index in 0..self.writer.lender_count() {
                while let Some(frame) = self.next(index) {
                    let (held, received) = (
                        self.writer.lenders[index].held.0,
                        self.writer.lenders[index].received.0,
                    );
                    if frame.kind == FrameKind::Ping {
                        let pong = FrameHeader {
                            kind: FrameKind::Pong,
                            ..self.ack_header(index, held, received)
                        };
                        self.say(index, pong, &frame.lsn.0.to_le_bytes());
                    }
                }
            }
        }
    }

    fn stable(bench: &mut Bench, lsn: u64) {
        let end = ChainPoint {
            lsn: Lsn(lsn),
            chain: 1,
        };
        bench.writer.on_stable(end, bench.now);
    }

    /// Lets time pass while lenders answer their pings.
    fn rest(bench: &mut Bench, ms: u64) {
        for _ in 0..ms / 10 {
            bench.wait(Nanos::from_ms(10));
            bench.answer_pings();
        }
    }

    /// A writer with one member, clean at 100.
    fn clean() -> Bench {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.append(100);
        bench.ack(0, 100, 100);
        stable(&mut bench, 100);
        rest(&mut bench, 1020);
        bench.store_view();
        let view = bench.views.last().expect("a view");
        assert_eq!(
            (view.clean, view.counting, view.members.len()),
            (Some(Lsn(100)), false, 1)
        );
        assert_eq!(view.answers(), 0, "recovery needs no member");
        bench
    }

    #[test]
    fn an_idle_journal_is_clean_and_its_first_append_makes_members_count_again() {
        let mut bench = clean();
        assert_eq!((bench.writer.counting(), bench.writer.blocked()), (false, None));
        assert!(
            !bench.writer.view_pending(),
            "an idle journal stores no more views"
        );
        assert!(bench.writer.status().clean);
        bench.append(200);
        bench.ack(0, 200, 200);
        assert!(!bench.writer.status().clean, "the last record is not on the disk");
        assert_eq!(
            bench.writer.acked(),
            Lsn(100),
            "under the durable view members do not count"
        );
        assert!(bench.writer.view_pending());
        let view = bench.writer.view_to_store().expect("a view that counts");
        assert_eq!((view.clean, view.counting), (None, true));
        assert_eq!(bench.writer.acked(), Lsn(100), "it is not durable yet");
        bench.writer.on_view_stored(bench.now);
        assert_eq!(bench.writer.acked(), Lsn(200));
        assert!(bench.writer.counting());
    }

    #[test]
    fn the_disk_acknowledges_until_members_count_again() {
        let mut bench = clean();
        bench.append(200);
        bench.ack(0, 200, 200);
        stable(&mut bench, 200);
        assert_eq!(bench.writer.acked(), Lsn(200));
        let votes = bench.writer.votes(Lsn(200));
        assert!(votes.disk && votes.rule, "members hold it, and the disk has it");
    }

    #[test]
    fn a_journal_is_not_clean_while_the_disk_lacks_something() {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.append(100);
        bench.ack(0, 100, 100);
        stable(&mut bench, 60);
        rest(&mut bench, 3000);
        assert!(!bench.writer.view_pending());
        stable(&mut bench, 100);
        rest(&mut bench, 900);
        assert!(!bench.writer.view_pending(), "idle time starts only now");
        rest(&mut bench, 200);
        assert!(bench.writer.view_pending());
    }

    /// Only the disk acknowledges an append that comes while the clean view is being stored.
    #[test]
    fn an_append_during_the_store_of_a_clean_view_waits_for_the_next_view() {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.append(100);
        bench.ack(0, 100, 100);
        stable(&mut bench, 100);
        rest(&mut bench, 1020);
        let mut before = bench.writer.clone();
        before.on_append(Lsn(200));
        assert!(before.view_to_store().is_none(), "not handed out yet: dropped");
        let view = bench.writer.view_to_store().expect("a clean view");
        assert_eq!(view.clean, Some(Lsn(100)));
        bench.append(200);
        bench.ack(0, 200, 200);
        assert_eq!(bench.writer.acked(), Lsn(100), "either view may be in the file");
        bench.writer.on_view_stored(bench.now);
        assert_eq!(bench.writer.acked(), Lsn(100));
        bench.store_view();
        assert_eq!(bench.writer.acked(), Lsn(200));
    }

    #[test]
    fn a_clean_journal_changes_its_members_and_stays_clean() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        rest(&mut bench, 1020);
        bench.store_view();
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(501));
        bench.store_view();
        assert_eq!(
            bench.writer.blocked(),
            Some(DiskWaitReason::TooFewMembers { have: 0, min: 1 })
        );
        bench.wait(Nanos::from_ms(10));
        bench.join(1);
        bench.store_view();
        let view = bench.views.last().expect("a view");
        assert_eq!((view.members.len(), view.clean), (1, Some(Lsn(0))));
    }

    /// To count again, its view would need the server, and an absent server must not keep members from
    /// acknowledging.
    #[test]
    fn a_shared_journal_is_never_clean() {
        let mut bench = Bench::shared(1, 1, CommitRule::All);
        bench.connect(0, 0);
        bench.join(0);
        bench.store_view();
        bench.kept(0, 2);
        bench.append(100);
        bench.ack(0, 100, 100);
        stable(&mut bench, 100);
        bench.kept(100, 2);
        rest(&mut bench, 3000);
        assert!(!bench.writer.view_pending());
        bench.append(200);
        bench.ack(0, 200, 200);
        assert_eq!(bench.writer.acked(), Lsn(200));
    }
}
