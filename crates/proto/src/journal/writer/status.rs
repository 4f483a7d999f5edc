//! What an operator is told about a writer.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::wire::Refusal;

use super::Writer;
use super::lender::{LinkPhase, Role};

/// Why commits wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Fewer members than the configured minimum.
    TooFewMembers {
        /// Members there are.
        have: usize,
        /// Members there must be.
        min: usize,
    },
    /// All members are in this machine's power domain, and nobody allowed that.
    OneDomain,
}

impl fmt::Display for Blocked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocked::TooFewMembers { have, min } => {
                write!(out, "of the {min} lenders that it takes, {have} are members")
            }
            Blocked::OneDomain => out.write_str(
                "every lender is in this machine's power domain: say what feeds each with `netram lend --domain`, \
                 or allow it with one-domain",
            ),
        }
    }
}

/// One lender's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderStatus {
    /// Where it is.
    pub address: String,
    /// What feeds it; empty until it has been reached.
    pub domain: String,
    /// Its memory's life; zero until it has been reached.
    pub incarnation: Incarnation,
    /// Its connection.
    pub link: LinkPhase,
    /// Its part.
    pub role: Role,
    /// In the durable view.
    pub member: bool,
    /// What it holds.
    pub held: Lsn,
    /// Why it would not take this journal.
    pub refused: Option<Refusal>,
}

/// A writer's standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterStatus {
    /// The reign.
    pub epoch: Epoch,
    /// The durable view's number.
    pub version: u64,
    /// `None`: members acknowledge. Otherwise why commits wait for the disk.
    pub blocked: Option<Blocked>,
    /// Every configured lender.
    pub lenders: Vec<LenderStatus>,
}

impl Writer {
    /// Why the members' acknowledgements do not count at the moment; `None`: they do.
    pub fn blocked(&self) -> Option<Blocked> {
        if self.counts(self.view) {
            return None;
        }
        let min = self
            .config
            .min
            .max(self.config.rule.copies(self.view.len()))
            .max(1);
        if self.view.len() < min {
            return Some(Blocked::TooFewMembers {
                have: self.view.len(),
                min,
            });
        }
        Some(Blocked::OneDomain)
    }

    /// Everything that is known of the lenders. Allocates.
    pub fn status(&self) -> WriterStatus {
        let lender = |(index, lender): (usize, &super::Lender)| LenderStatus {
            address: lender.address.clone(),
            domain: lender.domain.clone(),
            incarnation: lender.incarnation,
            link: lender.link,
            role: lender.role,
            member: self.view.has(index),
            held: lender.held,
            refused: lender.refused.map(|(refusal, _)| refusal),
        };
        WriterStatus {
            epoch: self.epoch,
            version: self.version,
            blocked: self.blocked(),
            lenders: self.lenders.iter().enumerate().map(lender).collect(),
        }
    }
}
