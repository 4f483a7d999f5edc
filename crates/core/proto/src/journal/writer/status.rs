//! The writer's status for operators.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::wire::RefusalReason;

use super::super::rule::CommitRule;
use super::JournalWriter;
use super::leaving::LeaveNotice;
use super::lender::{LenderRole, LinkPhase};

/// Why commits wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWaitReason {
    /// The journal has fewer members than the configured minimum.
    TooFewMembers {
        /// Number of members.
        have: usize,
        /// Number of members needed.
        min: usize,
    },
    /// Enough members to acknowledge, or all lenders that could join, are in this machine's power domain, and
    /// the settings do not allow that.
    OneDomain,
}

impl fmt::Display for DiskWaitReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskWaitReason::TooFewMembers { have, min } => {
                write!(out, "only {have} of the {min} members needed are present")
            }
            DiskWaitReason::OneDomain => out.write_str(
                "too many lenders are in this machine's power domain: name each lender's domain with \
                 `netram lender serve --domain`, or allow this with one-domain",
            ),
        }
    }
}

/// A lender's refusal of a journal, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenderRefusal {
    /// The reason.
    pub reason: RefusalReason,
    /// Bytes requested; for `Fenced`, the writer's epoch.
    pub asked: u64,
    /// The limit: bytes free, the quota in bytes, or a number of journals, depending on the reason. For
    /// `Fenced`, the epoch that the lender names.
    pub limit: u64,
}

/// The status of one lender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLenderStatus {
    /// Its index among the writer's lenders.
    pub index: usize,
    /// Its address.
    pub address: String,
    /// Power domain of the lender; empty until it has been reached.
    pub domain: String,
    /// Incarnation of its memory; zero until it has been reached.
    pub incarnation: Incarnation,
    /// Phase of its connection.
    pub link: LinkPhase,
    /// Its role in the journal.
    pub role: LenderRole,
    /// Whether it is in the durable view.
    pub member: bool,
    /// End of the whole records that it holds.
    pub held: Lsn,
    /// Its last refusal of this journal.
    pub refused: Option<LenderRefusal>,
    /// The address of another lender with the same memory, of which this one is an alias.
    pub alias_of: Option<String>,
    /// Whether it was given up because it answered and made no progress.
    pub stalled: bool,
    /// Whether it announced that it is about to stop.
    pub stopping: bool,
    /// Whether its operator drains it: it takes no new windows, and members leave it once they are replaced.
    pub draining: bool,
    /// Whether its machine is short of memory: it takes no window, and members leave it once they are
    /// replaced.
    pub reclaiming: bool,
    /// Whether it would not add a power domain that the commit rule requires.
    pub unfit: bool,
    /// Whether it was removed while the journal was open. A member stays until another has taken its place; a
    /// lender that is away is told once it is back.
    pub removed: bool,
}

/// Number of copies that members hold, and of power domains that they are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Number of members of the durable view.
    pub have: usize,
    /// Number of members that the settings ask for.
    pub wanted: usize,
    /// Number of power domains that the members are in.
    pub domains: usize,
}

impl fmt::Display for CopyCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.have < self.wanted {
            write!(out, "{} of ", self.have)?;
        }
        let most = self.wanted.max(self.have);
        let copies = if most == 1 { "copy" } else { "copies" };
        let domains = if self.domains == 1 { "domain" } else { "domains" };
        write!(out, "{most} {copies}, {} {domains}", self.domains)
    }
}

/// The status of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// The writer's epoch.
    pub epoch: Epoch,
    /// The durable view's number.
    pub version: u64,
    /// Why commits wait for the disk; `None` if members acknowledge.
    pub blocked: Option<DiskWaitReason>,
    /// Whether the journal is clean: all of it is on the disk, and recovery needs no member.
    pub clean: bool,
    /// The copies that members hold.
    pub copies: CopyCounts,
    /// The commit rule in force, that of the durable view.
    pub rule: CommitRule,
    /// Whether lenders, rule and number of members are as configured: no change waits for a lender or a disk.
    pub settled: bool,
    /// Every configured lender, and those that are being removed.
    pub lenders: Vec<JournalLenderStatus>,
}

impl JournalWriter {
    /// Why the members' acknowledgements do not count at the moment; `None` if they do.
    pub fn blocked(&self) -> Option<DiskWaitReason> {
        if self.counts(self.view, self.terms) {
            return None;
        }
        let min = self.terms.members_needed(self.view.len());
        let unfit = |index: usize| self.lenders[index].is_ready() && !self.fits(self.view, index);
        if self.view.len() < min && !(0..self.lenders.len()).any(unfit) {
            return Some(DiskWaitReason::TooFewMembers {
                have: self.view.len(),
                min,
            });
        }
        Some(DiskWaitReason::OneDomain)
    }

    /// Everything known about the lenders. Allocates.
    pub fn status(&self) -> WriterStatus {
        let lender = |(index, lender): (usize, &super::WriterLender)| JournalLenderStatus {
            index,
            address: lender.address.clone(),
            domain: lender.domain.clone(),
            incarnation: lender.incarnation,
            link: lender.link,
            role: lender.role,
            member: self.view.has(index),
            held: lender.held,
            refused: lender.refused.map(|(refusal, _)| refusal),
            alias_of: self
                .alias_of(index)
                .map(|other| self.lenders[other].address.clone()),
            stalled: lender.stalled_until.is_some() && !lender.takes_appends(),
            stopping: lender.leave_notice == Some(LeaveNotice::Stops),
            draining: lender.leave_notice == Some(LeaveNotice::Drains),
            reclaiming: lender.leave_notice == Some(LeaveNotice::Reclaims),
            unfit: lender.is_ready() && !self.view.has(index) && !self.fits(self.view, index),
            removed: lender.removed,
        };
        WriterStatus {
            epoch: self.epoch,
            version: self.version,
            blocked: self.blocked(),
            clean: self.clean.is_some_and(|end| end == self.tail),
            copies: CopyCounts {
                have: self.view.len(),
                wanted: self.config.wanted,
                domains: self.domains(),
            },
            rule: self.terms.rule,
            settled: self.is_settled(),
            lenders: self
                .lenders
                .iter()
                .enumerate()
                .filter(|(_, lender)| !lender.is_vacant())
                .map(lender)
                .collect(),
        }
    }
}
