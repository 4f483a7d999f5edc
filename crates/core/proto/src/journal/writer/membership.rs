//! Orders that change lenders, commit rule and number of members while the journal is open.
//!
//! An order says what the settings shall be ([`JournalMembership`]), not what shall change, so it can be
//! repeated. It takes part in nothing but the choice of the next view, which then replaces the present one as
//! every view does. A view carries its [`ViewTerms`]: while one view replaces the other an LSN is
//! acknowledged only if both rules hold, and the new one alone counts once it is durable. So an
//! acknowledgement keeps the promise of each view that a crash may leave in the file.
//!
//! *Make before break.*
//!
//! | order | until then | takes effect |
//! |---|---|---|
//! | add a lender | | it is a candidate at once, and connected |
//! | remove a member | it goes on acknowledging | when the others are as many as wanted |
//! | remove another lender | | at once; it is told to free its window, however late it comes |
//! | more members, a stricter rule | the old terms count | when a view that satisfies the new ones is filled |
//! | fewer members, a laxer rule | the old terms count | when the new view is durable |
//!
//! A view that has lost members and counts under neither terms is stored with the new ones.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::limit::{ADDRESS_BYTES_MAX, LENDERS_MAX, MEMBERS_MAX};
use crate::planted::PlantedFault;
use crate::time::Time;

use super::super::rule::CommitRule;
use super::lender::{ControlFrame, LenderRole, LinkPhase, WriterLender};
use super::{JournalWriter, LenderIndexSet};

/// The terms under which a view's members acknowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ViewTerms {
    /// The commit rule.
    pub(super) rule: CommitRule,
    /// Minimum number of members.
    pub(super) min: usize,
}

impl ViewTerms {
    /// Number of members that a view of `members` must have in order to count.
    pub(super) fn members_needed(self, members: usize) -> usize {
        self.min.max(self.rule.copies(members)).max(1)
    }
}

/// The part of a journal's settings that may change while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalMembership {
    /// Addresses of the lenders that may become members, in order of preference.
    pub lenders: Vec<String>,
    /// The commit rule.
    pub rule: CommitRule,
    /// Number of members wanted.
    pub wanted: usize,
    /// Minimum number of members; with fewer, commits wait for the disk.
    pub min: usize,
}

/// Why a journal cannot have a membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipError {
    /// More lenders are named than a journal can have.
    TooManyLenders(usize),
    /// An address is named twice.
    NamedTwice(String),
    /// More members are wanted than there are lenders, or than a view can have.
    TooManyMembers {
        /// Number of members wanted.
        wanted: usize,
        /// Number of lenders.
        lenders: usize,
    },
    /// The rule demands more copies than there are members.
    RuleAboveMembers {
        /// The commit rule.
        rule: CommitRule,
        /// Number of members wanted.
        wanted: usize,
    },
    /// The minimum exceeds the number of members.
    MinAboveMembers(usize),
    /// An open journal would have no lender or no member left.
    NoneLeft,
    /// All places are taken, some by removed lenders that are members until others take their place.
    PlacesTaken,
    /// A newer writer has fenced this one, the journal is closed, or its disk has failed: no view can be
    /// stored any more.
    Ended,
}

impl fmt::Display for MembershipError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MembershipError::TooManyLenders(count) => write!(
                out,
                "{count} lenders are configured; at most {LENDERS_MAX} are possible"
            ),
            MembershipError::NamedTwice(address) => write!(
                out,
                "{address} is named twice; two copies at one lender are one copy"
            ),
            MembershipError::TooManyMembers { wanted, lenders } => write!(
                out,
                "{wanted} members are asked for, of {lenders} lenders; give at least as many lenders as members, and at most {MEMBERS_MAX} members"
            ),
            MembershipError::RuleAboveMembers { rule, wanted } => {
                write!(out, "the commit rule {rule} cannot be met by {wanted} members")
            }
            MembershipError::MinAboveMembers(wanted) => write!(
                out,
                "the minimum of members exceeds the {wanted} members asked for"
            ),
            MembershipError::NoneLeft => out.write_str(
                "no lender would be left, and every commit would wait for the disk; add another lender first, or close the journal and empty its settings' `lenders`",
            ),
            MembershipError::PlacesTaken => write!(
                out,
                "all {LENDERS_MAX} places are taken, some by removed lenders that others must replace first; try again when they have left"
            ),
            MembershipError::Ended => out.write_str(
                "the journal can store no view any more: its disk has failed, it is closed, or a newer writer owns it",
            ),
        }
    }
}

impl core::error::Error for MembershipError {}

impl JournalMembership {
    /// Checks the membership for contradictions and limits.
    ///
    /// # Errors
    /// One [`MembershipError`] a contradiction.
    pub fn check(&self) -> Result<(), MembershipError> {
        let (lenders, wanted) = (self.lenders.len(), self.wanted);
        if lenders > LENDERS_MAX {
            return Err(MembershipError::TooManyLenders(lenders));
        }
        if wanted > MEMBERS_MAX || wanted > lenders {
            return Err(MembershipError::TooManyMembers { wanted, lenders });
        }
        if wanted > 0 && self.rule.copies(wanted) > wanted {
            return Err(MembershipError::RuleAboveMembers {
                rule: self.rule,
                wanted,
            });
        }
        if self.min > wanted.max(1) {
            return Err(MembershipError::MinAboveMembers(wanted));
        }
        let mut before = self.lenders.iter().enumerate();
        let twice = before.find(|&(index, address)| self.lenders[..index].contains(address));
        twice.map_or(Ok(()), |(_, address)| {
            Err(MembershipError::NamedTwice(address.clone()))
        })
    }
}

impl JournalWriter {
    /// The membership that the journal is to have.
    pub fn membership(&self) -> JournalMembership {
        let named = |lender: &&WriterLender| !lender.removed && !lender.is_vacant();
        JournalMembership {
            lenders: self
                .lenders
                .iter()
                .filter(named)
                .map(|lender| lender.address.clone())
                .collect(),
            rule: self.config.rule,
            wanted: self.config.wanted,
            min: self.config.min,
        }
    }

    /// Whether this writer could take `order`.
    ///
    /// # Errors
    /// One [`MembershipError`] a reason; nothing has changed.
    pub fn check_membership(&self, order: &JournalMembership) -> Result<(), MembershipError> {
        order.check()?;
        assert!(order.lenders.iter().all(|one| one.len() <= ADDRESS_BYTES_MAX));
        if order.lenders.is_empty() || order.wanted == 0 {
            return Err(MembershipError::NoneLeft);
        }
        if self.fenced.is_some() || self.closed || self.disk_failed {
            return Err(MembershipError::Ended);
        }
        // Members keep their places until others have replaced them.
        let kept = (0..self.lenders.len())
            .filter(|&index| self.must_stay(index) && !order.lenders.contains(&self.lenders[index].address));
        if kept.count() + order.lenders.len() > LENDERS_MAX {
            return Err(MembershipError::PlacesTaken);
        }
        Ok(())
    }

    /// Gives the journal another membership. It takes effect as the table above says.
    ///
    /// # Errors
    /// Those of [`JournalWriter::check_membership`]; nothing has changed.
    pub fn on_membership(&mut self, order: &JournalMembership, now: Time) -> Result<(), MembershipError> {
        self.check_membership(order)?;
        for index in 0..self.lenders.len() {
            let lender = &mut self.lenders[index];
            let removed = !lender.is_vacant() && !order.lenders.contains(&lender.address);
            if removed && !lender.removed {
                lender.removed = true;
                lender.leaving = false;
                self.begin_removal(index);
            }
            self.lenders[index].removed = removed;
        }
        for address in &order.lenders {
            if !self.lenders.iter().any(|lender| lender.address == *address) {
                self.add(address);
            }
        }
        self.config.lenders.clone_from(&order.lenders);
        self.config.rule = order.rule;
        self.config.wanted = order.wanted;
        self.config.min = order.min;
        self.settle(now);
        Ok(())
    }

    /// Whether the durable view, its terms and the lenders are as ordered.
    pub(super) fn is_settled(&self) -> bool {
        let removed = |index: usize| self.lenders[index].removed;
        self.terms == self.wished_terms()
            && self.view.len() == self.config.wanted
            && (self.config.wanted == 0 || self.counts(self.view, self.terms))
            && !self.view.iter().any(removed)
    }

    /// The terms that the next view is to have.
    pub(super) fn wished_terms(&self) -> ViewTerms {
        ViewTerms {
            rule: self.config.rule,
            min: self.config.min,
        }
    }

    /// The terms of a next view of `target`. The present ones are kept while the view counts under them and
    /// would not under the wished ones, and while a member claims a newer writer (`fence_claims.rs`).
    pub(super) fn next_terms(&self, target: LenderIndexSet) -> ViewTerms {
        let wished = self.wished_terms();
        let would_stop = self.counts(target, self.terms) && !self.counts(target, wished);
        match would_stop || !self.claims.members.is_empty() {
            true => self.terms,
            false => wished,
        }
    }

    /// `target` without members above the wanted number: first those that are away, then those that share
    /// their power domain with another, the least preferred first.
    pub(super) fn without_surplus(&self, mut target: LenderIndexSet) -> LenderIndexSet {
        while target.len() > self.config.wanted && self.claims.members.is_empty() {
            let may_go = |&index: &usize| self.domains_differ(target.without(index), self.config.rule);
            let shares = |index: usize| {
                let domain = &self.lenders[index].domain;
                let same = |other: usize| other != index && self.lenders[other].domain == *domain;
                target.iter().any(same)
            };
            let worst = |&index: &usize| (!self.lenders[index].is_ready(), shares(index), index);
            let Some(surplus) = target.iter().filter(may_go).max_by_key(worst) else {
                break;
            };
            target = target.without(surplus);
        }
        target
    }

    /// Frees the places of removed lenders that are no members and have been told. A lender that is away is
    /// told when it is back.
    pub(super) fn release_removed(&mut self) {
        for index in 0..self.lenders.len() {
            let lender = &self.lenders[index];
            let told = lender.is_ready() && lender.control.is_none() && !lender.leaving;
            if lender.removed && told && !self.must_stay(index) {
                self.vacate(index);
            }
        }
    }

    /// Whether lender `index` must keep its place: its window counts or is about to, a claim pins it, or the
    /// driver is connecting to it.
    fn must_stay(&self, index: usize) -> bool {
        let lender = &self.lenders[index];
        let is_used = self.in_use(index) || lender.role == LenderRole::Member;
        is_used || self.claims.members.has(index) || lender.link == LinkPhase::Connecting
    }

    /// Gives up the window of a removed lender that counts nowhere. A member stays until it is replaced.
    fn begin_removal(&mut self, index: usize) {
        let lender = &mut self.lenders[index];
        if matches!(lender.role, LenderRole::Joining | LenderRole::CatchingUp(_)) {
            self.turn_away(index);
        }
        if self.planted.is(PlantedFault::RemovedAtOnce) && self.lenders[index].role == LenderRole::Member {
            self.turn_away(index);
        }
        let may_hold = self.lenders[index].generation != 0 && !self.in_use(index);
        let lender = &mut self.lenders[index];
        if may_hold && lender.is_ready() && lender.role == LenderRole::Spare {
            // Word of an earlier departure may still be on its way, and closing the link would undo it.
            lender.control.get_or_insert(ControlFrame::Leave);
        }
        lender.leaving = lender.control == Some(ControlFrame::Leave);
    }

    /// Frees the place of lender `index`, and has its connection closed.
    fn vacate(&mut self, index: usize) {
        if self.lenders[index].ever_listened {
            self.renew_channel();
        }
        self.disconnects = self.disconnects.with(index);
        self.departing = self.departing.without(index);
        self.claims.vacate(index);
        self.lenders[index] = WriterLender::new(String::new());
    }

    /// Gives `address` a place: a free one, a new one, or that of a removed lender that is away. The hot path
    /// looks at every place, so there are no more than needed.
    fn add(&mut self, address: &str) {
        let lender = WriterLender::new(String::from(address));
        let free = |index: &usize| self.lenders[*index].is_vacant();
        // Its window is freed when the journal is closed, or as one that its client abandoned.
        let evictable = |index: &usize| self.lenders[*index].removed && !self.must_stay(*index);
        let places = 0..self.lenders.len();
        if let Some(index) = places.clone().find(free) {
            self.lenders[index] = lender;
        } else if self.lenders.len() < LENDERS_MAX {
            self.lenders.push(lender);
        } else {
            let place = places.clone().find(evictable);
            let index =
                place.expect("the order was checked: lenders that must stay leave room for all others");
            self.vacate(index);
            self.lenders[index] = lender;
        }
    }
}

#[cfg(test)]
mod tests;
