//! What an operator is told about a writer.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::wire::RefusalReason;

use super::JournalWriter;
use super::lender::{LenderRole, LinkPhase};

/// Why commits wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskWaitReason {
    /// Fewer members than the configured minimum.
    TooFewMembers {
        /// Members there are.
        have: usize,
        /// Members there must be.
        min: usize,
    },
    /// As many members as acknowledge, or all that could join, are in this machine's power domain, and nobody
    /// allowed that.
    OneDomain,
}

impl fmt::Display for DiskWaitReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskWaitReason::TooFewMembers { have, min } => {
                write!(out, "of the {min} lenders that it takes, {have} are members")
            }
            DiskWaitReason::OneDomain => out.write_str(
                "too many lenders are in this machine's power domain: say what feeds each with `netram lend --domain`, \
                 or allow it with one-domain",
            ),
        }
    }
}

/// Why a lender would not take a journal, with the numbers that a person will want.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenderRefusal {
    /// Why.
    pub reason: RefusalReason,
    /// Bytes asked for.
    pub asked: u64,
    /// What there is of it: bytes free, the quota, or how many journals.
    pub limit: u64,
}

/// One lender's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalLenderStatus {
    /// Where it is.
    pub address: String,
    /// What feeds it; empty until it has been reached.
    pub domain: String,
    /// Its memory's life; zero until it has been reached.
    pub incarnation: Incarnation,
    /// Its connection.
    pub link: LinkPhase,
    /// Its part.
    pub role: LenderRole,
    /// In the durable view.
    pub member: bool,
    /// What it holds.
    pub held: Lsn,
    /// Why it would not take this journal.
    pub refused: Option<LenderRefusal>,
    /// Its memory is that of the lender at this address, too: it counts once.
    pub alias_of: Option<String>,
    /// It was given up because it answered and made no progress.
    pub stalled: bool,
    /// It said that it is about to stop.
    pub stopping: bool,
    /// Its memory would add no failure domain that the rule asks for.
    pub unfit: bool,
}

/// How many copies members hold, and how many failures it takes to lose them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyCounts {
    /// Members of the durable view.
    pub have: usize,
    /// Members that the settings ask for.
    pub wanted: usize,
    /// Failure domains that the members are in.
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

/// A writer's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// The reign.
    pub epoch: Epoch,
    /// The durable view's number.
    pub version: u64,
    /// `None`: members acknowledge. Otherwise why commits wait for the disk.
    pub blocked: Option<DiskWaitReason>,
    /// The journal rests: all of it is on the disk, and recovery needs nobody.
    pub clean: bool,
    /// The copies that members hold.
    pub copies: CopyCounts,
    /// Every configured lender.
    pub lenders: Vec<JournalLenderStatus>,
}

impl JournalWriter {
    /// Why the members' acknowledgements do not count at the moment; `None`: they do.
    pub fn blocked(&self) -> Option<DiskWaitReason> {
        if self.counts(self.view) {
            return None;
        }
        let min = self
            .config
            .min
            .max(self.config.rule.copies(self.view.len()))
            .max(1);
        let unfit = |index: usize| self.lenders[index].is_ready() && !self.fits(self.view, index);
        if self.view.len() < min && !(0..self.lenders.len()).any(unfit) {
            return Some(DiskWaitReason::TooFewMembers {
                have: self.view.len(),
                min,
            });
        }
        Some(DiskWaitReason::OneDomain)
    }

    /// Everything that is known of the lenders. Allocates.
    pub fn status(&self) -> WriterStatus {
        let lender = |(index, lender): (usize, &super::WriterLender)| JournalLenderStatus {
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
            stopping: lender.withdrawn,
            unfit: lender.is_ready() && !self.view.has(index) && !self.fits(self.view, index),
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
            lenders: self.lenders.iter().enumerate().map(lender).collect(),
        }
    }
}
