//! Who is a member: finding spares, filling them, proposing views, and adopting them once they are durable.

use alloc::vec::Vec;

use crate::planted::Fault;
use crate::time::Time;

use super::super::view::{JoinId, View, ViewMember};
use super::lender::{Control, Role};
use super::{Set, Writer};

/// A view on its way into the view file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    pub(super) set: Set,
    /// The driver has it: from now on a crash may leave either view in the file, and there is no way back.
    pub(super) stored: bool,
    /// It is durable here. It counts once a data lender in service, or a shared journal's server, has it too.
    pub(super) durable: bool,
}

impl Writer {
    /// Time passes. The driver calls this every few milliseconds, and more often if it likes.
    pub fn on_tick(&mut self, now: Time) {
        let detect = self.config.timing.detect;
        self.expire_kept(now);
        for index in 0..self.lenders.len() {
            let lender = &self.lenders[index];
            if lender.owing.is_some_and(|since| now.since(since) > detect) {
                if lender.role == Role::Member {
                    self.gone = self.gone.with(index);
                }
                self.lost_by_us(index, now);
            } else if lender.role == Role::Member && lender.lost_at.is_some_and(|at| now.since(at) > detect) {
                self.gone = self.gone.with(index);
            }
        }
        self.settle(now);
    }

    /// Makes the state clean after an event: acknowledgements, proposals, joins.
    pub(super) fn settle(&mut self, now: Time) {
        self.adopt();
        self.advance();
        if self.fenced.is_none() {
            self.propose();
            self.advance();
            self.recruit(now);
            self.invite(now);
        }
    }

    /// The view to be: without those gone, with those whose windows are full.
    fn target(&self) -> Set {
        let mut target = self.view.minus(self.gone);
        for index in self.view.iter().filter(|&index| self.lenders[index].withdrawn) {
            target = target.without(index);
        }
        for (index, lender) in self.lenders.iter().enumerate() {
            let full = matches!(lender.role, Role::Catching(goal) if lender.held >= goal);
            if !full || !lender.is_ready() || lender.withdrawn {
                continue;
            }
            if target.len() < self.config.wanted {
                target = target.with(index);
            } else if !self.domains_differ(target) && lender.domain != self.config.domain {
                // Full, and yet it does not count: the least preferred member makes way for one that is fed elsewhere.
                let last = target.iter().last().unwrap_or(index);
                target = target.without(last).with(index);
            }
        }
        target
    }

    fn propose(&mut self) {
        if self.disk_failed || self.proposal.is_some_and(|proposal| proposal.stored) {
            return;
        }
        let target = self.target();
        // A proposal that is not stored yet may still be changed, or dropped.
        self.proposal = (target != self.view).then_some(Proposal {
            set: target,
            stored: false,
            durable: false,
        });
    }

    /// Whether [`Writer::view_to_store`] would return a view.
    pub fn view_pending(&self) -> bool {
        self.proposal
            .is_some_and(|proposal| !proposal.stored && self.may_store(proposal.set))
    }

    /// Everything acknowledged so far satisfies a view of `set`, or is on the local disk (of a shared journal: at its server).
    fn may_store(&self, set: Set) -> bool {
        let satisfied = self.rule_lsn(set).is_some_and(|lsn| lsn >= self.acked);
        let safe = satisfied || self.voted() >= self.acked || self.planted.is(Fault::NoViewGate);
        safe && self.is_backed(set)
    }

    /// The reign ends: everything is on the local disk, and a view without members is durable. Members are told that
    /// they may forget, and those that were about to become members.
    pub fn on_close(&mut self) {
        assert_eq!(self.stable.lsn, self.tail);
        for (index, lender) in self.lenders.iter_mut().enumerate() {
            if !self.view.has(index) && lender.role == Role::Spare {
                continue;
            }
            lender.dismiss();
            lender.control = lender.is_ready().then_some(Control::Leave);
        }
        self.view = Set::EMPTY;
        self.proposal = None;
    }

    /// The view that the driver must make durable now, if there is one. Returned once; the driver answers with
    /// [`Writer::on_view_stored`] or [`Writer::on_disk_failed`].
    pub fn view_to_store(&mut self) -> Option<View> {
        let Proposal {
            set, stored: false, ..
        } = self.proposal?
        else {
            return None;
        };
        if !self.may_store(set) {
            return None;
        }
        self.proposal = Some(Proposal {
            set,
            stored: true,
            durable: false,
        });
        // Members from here on: whatever becomes of their links, their windows must not be emptied.
        for index in set.iter() {
            self.lenders[index].role = Role::Member;
        }
        let member = |index: usize| ViewMember {
            incarnation: self.lenders[index].incarnation,
            join: Some(JoinId {
                reign: self.lenders[index].window_epoch,
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
            rule: self.config.rule,
            counting: self.counts(set),
            clean: None,
            window_bytes: self.config.window_bytes,
            base: self.base,
            members: set.iter().map(member).collect::<Vec<_>>(),
            reigns: self.reigns.clone(),
        })
    }

    /// The view handed out by [`Writer::view_to_store`] is durable here. It counts from now on, or from when the data
    /// lender in service has it too, or is out of service.
    pub fn on_view_stored(&mut self, now: Time) {
        match &mut self.proposal {
            Some(proposal) if proposal.stored => proposal.durable = true,
            _ => unreachable!("only a proposal that was handed out is stored"),
        }
        self.settle(now);
    }

    /// Puts the proposed view in the place of the present one, once it is durable wherever it must be.
    fn adopt(&mut self) {
        let Some(Proposal {
            set, durable: true, ..
        }) = self.proposal
        else {
            return;
        };
        if !self.next_view_is_kept() {
            return;
        }
        self.proposal = None;
        for index in self.view.minus(set).iter() {
            let lender = &mut self.lenders[index];
            lender.dismiss();
            lender.control = lender.is_ready().then_some(Control::Leave);
        }
        if self.view.minus(set).iter().any(|index| self.lenders[index].heard) {
            self.renew_channel();
        }
        self.gone = self.gone.minus(self.view.minus(set));
        self.view = set;
        self.version += 1;
    }

    /// Asks spares to join while members are missing, or while all there are share this machine's power domain.
    fn recruit(&mut self, now: Time) {
        if self.disk_failed {
            return;
        }
        // A view on its way into the view file, or to the server, is as good as there: its members are no spares any more.
        let stored = self.proposal.filter(|proposal| proposal.stored);
        let mut team = stored.map_or(self.view, |proposal| proposal.set).minus(self.gone);
        for (index, lender) in self.lenders.iter().enumerate() {
            let coming = matches!(lender.role, Role::Joining | Role::Catching(_));
            if coming {
                team = team.with(index);
            } else if lender.withdrawn {
                team = team.without(index);
            }
        }
        loop {
            let spare = if team.len() < self.config.wanted {
                self.best_spare(now)
            } else if team.is_empty() || self.domains_differ(team) {
                None
            } else {
                self.spares(now)
                    .find(|&index| self.lenders[index].domain != self.config.domain)
            };
            let Some(index) = spare else { return };
            self.generations += 1;
            let lender = &mut self.lenders[index];
            lender.generation = self.generations;
            lender.window_epoch = self.epoch;
            lender.incarnation = lender.behind_link;
            lender.role = Role::Joining;
            lender.control = Some(Control::Join);
            team = team.with(index);
        }
    }

    /// The first spare in the configured order, those in a power domain that the view lacks before the others.
    fn best_spare(&self, now: Time) -> Option<usize> {
        let fresh = |index: &usize| {
            let domain = &self.lenders[*index].domain;
            *domain != self.config.domain
                && !self
                    .view
                    .iter()
                    .any(|member| self.lenders[member].domain == *domain)
        };
        self.spares(now).find(fresh).or_else(|| self.spares(now).next())
    }

    /// Lenders that could be asked to join.
    fn spares(&self, now: Time) -> impl Iterator<Item = usize> {
        (0..self.lenders.len()).filter(move |&index| {
            let lender = &self.lenders[index];
            let willing = lender.refused.is_none_or(|(_, until)| until <= now);
            let free = lender.role == Role::Spare && lender.control.is_none() && !self.in_use(index);
            lender.is_ready() && free && willing && !lender.withdrawn
        })
    }

    /// In the durable view or the proposed one: such a lender's window must not be emptied.
    fn in_use(&self, index: usize) -> bool {
        self.view.has(index) || self.proposal.is_some_and(|proposal| proposal.set.has(index))
    }
}
