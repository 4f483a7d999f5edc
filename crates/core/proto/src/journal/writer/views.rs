//! Membership: finding spares, filling them, proposing views, and adopting them once they are durable.

use alloc::vec::Vec;

use crate::id::Lsn;
use crate::planted::PlantedFault;
use crate::time::Time;

use super::super::epoch_history;
use super::super::view::{JoinId, View, ViewMember};
use super::Voter;
use super::lender::{ControlFrame, LenderRole};
use super::{JournalWriter, LenderIndexSet, ViewTerms};

/// A view that is proposed or being stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct ViewProposal {
    pub(super) set: LenderIndexSet,
    pub(super) terms: ViewTerms,
    /// The LSN at which it marks the journal clean.
    pub(super) clean: Option<Lsn>,
    /// Whether the driver has it: a crash may then leave either view in the file, and the proposal is final.
    pub(super) stored: bool,
    /// Whether it is durable here. It counts once a data lender in service, or a shared journal's server, has
    /// it too.
    pub(super) durable: bool,
}

impl JournalWriter {
    /// Settles the state after an event: acknowledgements, proposals, joins.
    pub(super) fn settle(&mut self, now: Time) {
        if self.closed {
            // Otherwise a lender that has left would be asked to join again.
            return;
        }
        self.adopt();
        self.weigh_claims(now);
        self.advance();
        if self.fenced.is_none() {
            self.propose();
            self.advance();
            self.recruit(now);
            self.release_removed();
            self.invite(now);
        }
    }

    /// The members that the next view should have: without departing ones, and with lenders whose windows are
    /// filled. Members that were asked to leave come last, and only where they are not replaced yet.
    fn target(&self) -> LenderIndexSet {
        let members = self.view.minus(self.may_leave());
        let asked = self.asked_to_leave(members);
        let mut target = members.minus(asked);
        for (index, lender) in self.lenders.iter().enumerate() {
            let full = matches!(lender.role, LenderRole::CatchingUp(goal) if lender.held >= goal);
            if full && lender.is_ready() && lender.leave_notice.is_none() {
                target = self.improved(target, index);
            }
        }
        for index in asked.iter() {
            if self.awaits_replacement(index, target) {
                target = self.improved(target, index);
            }
        }
        self.without_surplus(target)
    }

    /// A view of `target`, and of lender `index` if it has a use there.
    fn improved(&self, target: LenderIndexSet, index: usize) -> LenderIndexSet {
        if target.len() < self.config.wanted && self.fits(target, index) {
            target.with(index)
        } else if !self.domains_differ(target, self.config.rule) && !self.is_here(index) {
            // The view is complete but does not count: the least preferred member in this machine's power
            // domain is replaced by one in another.
            let stays = self.claims.members;
            let may_go = |&member: &usize| self.is_here(member) && !stays.has(member);
            let last = target.iter().filter(may_go).last();
            let last = last.unwrap_or(index);
            target.without(last).with(index)
        } else {
            target
        }
    }

    pub(super) fn propose(&mut self) {
        if self.disk_failed || self.proposal.is_some_and(|proposal| proposal.stored) {
            return;
        }
        let target = self.target();
        let terms = self.next_terms(target);
        let clean = self.wants_clean(target, terms).then_some(self.stable.lsn);
        let changes = target != self.view || terms != self.terms || clean.is_some() != self.clean.is_some();
        // A proposal that has not been handed out may still change, or be dropped.
        self.proposal = changes.then_some(ViewProposal {
            set: target,
            terms,
            clean,
            stored: false,
            durable: false,
        });
    }

    /// Whether [`JournalWriter::view_to_store`] would return a view.
    pub fn view_pending(&self) -> bool {
        self.proposal
            .is_some_and(|proposal| !proposal.stored && self.may_store(&proposal))
    }

    /// Whether the proposed view may be stored: everything acknowledged so far satisfies it, or is on the
    /// local disk (for a shared journal: at its server).
    pub(super) fn may_store(&self, proposal: &ViewProposal) -> bool {
        let satisfied = self
            .counted(proposal.set, proposal.terms, proposal.clean)
            .is_some_and(|lsn| lsn >= self.acked);
        let gate_open = self.planted.is(PlantedFault::NoViewGate)
            || proposal.clean.is_some() && self.planted.is(PlantedFault::CleanTooEarly);
        let safe = satisfied || self.voter_acked() >= self.acked || gate_open;
        safe && self.is_backed(proposal.set)
    }

    /// Closes the journal: everything is on the local disk, and a view without members is durable. All
    /// lenders, spares too, are told that they may forget the journal and its fence.
    ///
    /// Two kinds of journals keep their fences. Members of a node keep theirs until the region's server says
    /// that the node is gone. So do members of a journal that was claimed from a copy: the fence tells the
    /// older directory that it is old.
    pub fn on_close(&mut self) {
        assert_eq!(self.stable.lsn, self.tail);
        let whole = self.config.voter == Voter::Disk && !epoch_history::was_claimed_from_copy(self.epoch);
        let leave = if whole {
            ControlFrame::LeaveClean
        } else {
            ControlFrame::Leave
        };
        for (index, lender) in self.lenders.iter_mut().enumerate() {
            if !whole && !self.view.has(index) && lender.role == LenderRole::Spare {
                continue;
            }
            lender.dismiss();
            lender.control = lender.is_ready().then_some(leave);
            lender.leaving = lender.is_ready();
        }
        self.closed = true;
        self.view = LenderIndexSet::EMPTY;
        self.clean = None;
        self.proposal = None;
    }

    /// Whether, after [`JournalWriter::on_close`], a connected lender has not answered `Leave` yet. Closing
    /// its link earlier may undo the farewell: a lender that is sending something else finds the link broken
    /// and reads no further.
    pub fn is_leaving(&self) -> bool {
        self.lenders
            .iter()
            .any(|lender| lender.leaving && lender.is_ready())
    }

    /// Takes the view that the driver must make durable now, if there is one. The driver answers with
    /// [`JournalWriter::on_view_stored`] or [`JournalWriter::on_disk_failed`].
    pub fn view_to_store(&mut self) -> Option<View> {
        let proposal = self.proposal.filter(|proposal| !proposal.stored)?;
        if !self.may_store(&proposal) {
            return None;
        }
        let ViewProposal {
            set, terms, clean, ..
        } = proposal;
        self.proposal = Some(ViewProposal {
            stored: true,
            ..proposal
        });
        // They are members from here on: whatever happens to their links, their windows must not be emptied.
        for index in set.iter() {
            self.lenders[index].role = LenderRole::Member;
        }
        let member = |index: usize| ViewMember {
            incarnation: self.lenders[index].incarnation,
            join: Some(JoinId {
                epoch: self.lenders[index].window_epoch,
                generation: self.lenders[index].generation,
            }),
            address: self.lenders[index].address.clone(),
            domain: self.lenders[index].domain.clone(),
        };
        Some(View {
            version: self.version + 1,
            journal: self.journal,
            epoch: self.epoch,
            writer: self.writer,
            salt: self.salt,
            rule: terms.rule,
            counting: self.counts(set, terms) && clean.is_none(),
            clean,
            window_bytes: self.config.window_bytes,
            base: self.base,
            members: set.iter().map(member).collect::<Vec<_>>(),
            epochs: self.epochs.clone(),
            note: self.note.clone(),
        })
    }

    /// Handles the durable storage of the view from [`JournalWriter::view_to_store`]. It counts from now on;
    /// with a data lender in service, once that has it too or is out of service.
    pub fn on_view_stored(&mut self, now: Time) {
        match &mut self.proposal {
            Some(proposal) if proposal.stored => proposal.durable = true,
            _ => unreachable!("only a proposal that was handed out is stored"),
        }
        self.settle(now);
    }

    /// Adopts the proposed view once it is durable everywhere that it must be.
    fn adopt(&mut self) {
        let Some(ViewProposal {
            set,
            terms,
            clean,
            durable: true,
            ..
        }) = self.proposal
        else {
            return;
        };
        if !self.next_view_is_acked() {
            return;
        }
        self.proposal = None;
        for index in self.view.minus(set).iter() {
            let lender = &mut self.lenders[index];
            lender.dismiss();
            let leave = match self.planted.is(PlantedFault::ClosedTooEarly) {
                true => ControlFrame::LeaveClean,
                false => ControlFrame::Leave,
            };
            lender.control = lender.is_ready().then_some(leave);
            lender.leaving |= lender.removed && lender.is_ready();
        }
        if self
            .view
            .minus(set)
            .iter()
            .any(|index| self.lenders[index].ever_listened)
        {
            self.renew_channel();
        }
        self.departing = self.departing.minus(self.view.minus(set));
        self.view = set;
        self.terms = terms;
        self.clean = clean;
        self.version += 1;
    }

    /// Asks spares to join while members are missing, or while all members share this machine's power domain.
    fn recruit(&mut self, now: Time) {
        if self.disk_failed {
            return;
        }
        // A view that is being stored, here or at the server, is final: its members are no longer spares.
        let stored = self.proposal.filter(|proposal| proposal.stored);
        let next = stored.map_or(self.view, |proposal| proposal.set);
        let mut team = next.minus(self.may_leave()).minus(self.asked_to_leave(next));
        let rule = self.config.rule;
        let complete = team.len() >= self.config.wanted && self.domains_differ(team, rule);
        for index in 0..self.lenders.len() {
            match self.lenders[index].role {
                // A member that was asked to leave, and is not any more, needs no replacement.
                LenderRole::Joining | LenderRole::CatchingUp(_) if complete => self.turn_away(index),
                LenderRole::Joining | LenderRole::CatchingUp(_) => team = team.with(index),
                LenderRole::Member | LenderRole::Spare => (),
            }
        }
        loop {
            let spare = if team.len() < self.config.wanted {
                self.best_spare(team, now)
            } else if team.is_empty() || self.domains_differ(team, rule) {
                None
            } else {
                self.spares(now).find(|&index| !self.is_here(index))
            };
            let Some(index) = spare else { return };
            self.generations += 1;
            let lender = &mut self.lenders[index];
            lender.generation = self.generations;
            lender.window_epoch = self.epoch;
            lender.incarnation = lender.link_incarnation;
            lender.role = LenderRole::Joining;
            lender.control = Some(ControlFrame::Join);
            team = team.with(index);
        }
    }

    /// The first spare in the configured order. Spares in a power domain that the view lacks come first.
    fn best_spare(&self, team: LenderIndexSet, now: Time) -> Option<usize> {
        let fresh = |index: &usize| {
            let domain = &self.lenders[*index].domain;
            !self.is_here(*index)
                && !self
                    .view
                    .iter()
                    .any(|member| self.lenders[member].domain == *domain)
        };
        let fits = |index: &usize| self.fits(team, *index);
        self.spares(now)
            .find(fresh)
            .or_else(|| self.spares(now).find(fits))
    }

    /// The lenders that could be asked to join.
    fn spares(&self, now: Time) -> impl Iterator<Item = usize> {
        (0..self.lenders.len()).filter(move |&index| {
            let lender = &self.lenders[index];
            let willing = lender.refused.is_none_or(|(_, until)| until <= now);
            let able = !self.memory_stalls(lender.link_incarnation, now);
            let free = lender.role == LenderRole::Spare && lender.control.is_none() && !self.in_use(index);
            let own = self.alias_of(index).is_none();
            let stays = lender.leave_notice.is_none() && !lender.removed;
            lender.is_ready() && free && willing && able && stays && own
        })
    }

    /// Whether the lender is in the durable view or the proposed one. Its window must then not be emptied.
    pub(super) fn in_use(&self, index: usize) -> bool {
        self.view.has(index) || self.proposal.is_some_and(|proposal| proposal.set.has(index))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use crate::id::Epoch;
    use crate::journal::CommitRule;
    use crate::time::Nanos;
    use crate::wire::{Flag, FrameHeader, FrameKind};

    fn said_at_the_end(bench: &mut Bench) -> alloc::vec::Vec<Option<u8>> {
        (0..bench.writer.lender_count()).for_each(|index| bench.drain(index));
        bench.writer.on_close();
        let mut said = |index| bench.next(index).filter(|frame| frame.kind == FrameKind::Leave);
        (0..2).map(|index| said(index).map(|frame| frame.flags)).collect()
    }

    /// A spare was not told, and kept its fence for the life of its memory.
    #[test]
    fn a_closing_journal_tells_members_and_spares() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        let whole = Some(Flag::CLOSED_CLEAN);
        assert_eq!(said_at_the_end(&mut bench), [whole, whole]);
    }

    #[test]
    fn a_journal_claimed_from_a_copy_keeps_its_fences_when_it_is_closed() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        bench.writer.epoch = Epoch(1 << 17);
        assert_eq!(said_at_the_end(&mut bench), [Some(0), None]);
    }

    /// After its answer, a lender that had left would be asked to join again.
    #[test]
    fn a_closed_journal_waits_for_every_lenders_answer_and_invites_no_lender() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        said_at_the_end(&mut bench);
        for index in 0..2 {
            assert!(bench.writer.is_leaving());
            let left = FrameHeader {
                epoch: Epoch(1),
                ..FrameHeader::new(FrameKind::LeaveAck)
            };
            bench.say(index, left, &[]);
            bench.wait(Nanos::from_ms(20));
            assert!(bench.next(index).is_none());
        }
        assert!(!bench.writer.is_leaving());
    }

    #[test]
    fn a_closing_node_keeps_its_fences() {
        let mut bench = Bench::shared(2, 1, CommitRule::All);
        (0..2).for_each(|index| bench.connect(index, index as u64));
        let said = said_at_the_end(&mut bench);
        assert!(said.iter().flatten().all(|flags| *flags == 0), "{said:?}");
    }
}
