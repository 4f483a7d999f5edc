//! How the members of a view answer recovery, and why recovery cannot go on.

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, Lsn};

/// How one member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// No connection yet, or it broke.
    Unreachable,
    /// Connected; not sealed yet.
    Connected,
    /// Sealed; its window is being read.
    Reading,
    /// Sealed and read.
    Complete,
    /// The lender is there, but it does not hold the window: it restarted without its memory, gave the window
    /// up, or has opened another in its place since.
    Amnesiac,
    /// Its window begins above the replica's end, or a reign that the replica was never told of has sealed
    /// it: the client went on without its data lender.
    AheadOfReplica,
    /// It says that it holds more than its window has room for: nothing that it says is believed.
    Overclaims,
}

impl core::fmt::Display for PeerAnswer {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        out.write_str(match self {
            PeerAnswer::Unreachable => "unreachable",
            PeerAnswer::Connected | PeerAnswer::Reading => "no answer",
            PeerAnswer::Complete => "answered",
            PeerAnswer::Amnesiac => "restarted without its memory",
            PeerAnswer::AheadOfReplica => "the client went on without its data lender",
            PeerAnswer::Overclaims => "claims more than its window can hold",
        })
    }
}

/// Why recovery cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// Too few members answered: an acknowledged record could be at those that are missing.
    Missing {
        /// Members that must answer.
        needed: usize,
        /// Members that did.
        answered: usize,
        /// The addresses that did not, and how each stands.
        missing: Vec<(String, PeerAnswer)>,
        /// The local log's end: what is in doubt begins here.
        from: Lsn,
        /// The highest LSN that a member that answered holds everything below of; `None`: nobody answered.
        held_max: Option<Lsn>,
    },
    /// A newer writer owns the journal.
    Fenced {
        /// Its epoch.
        seen: Epoch,
    },
    /// Of a replica: its view names nobody who could tell whether the client's disk had more.
    Unproven {
        /// The replica's end: what is in doubt begins here.
        from: Lsn,
    },
}

impl core::fmt::Display for RecoveryError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RecoveryError::Missing {
                needed,
                answered,
                missing,
                from,
                held_max: shown,
            } => {
                write!(
                    out,
                    "cannot prove that every acknowledged record was found: {answered} of {needed} needed members answered; missing:"
                )?;
                for (address, answer) in missing {
                    write!(out, " {address} ({answer})")?;
                }
                write!(out, "; in doubt: LSN {from} and above. ")?;
                match shown {
                    Some(shown) if shown <= from => write!(
                        out,
                        "The local log ends at or above all that the members that answered hold (LSN {shown}): probably nothing is missing. "
                    )?,
                    Some(shown) => write!(
                        out,
                        "Members that answered hold records up to LSN {shown}, which would be kept. "
                    )?,
                    None => out.write_str("No member can tell whether there was more. ")?,
                }
                out.write_str(
                    "Bring a missing lender back, or give up what only it may hold with --accept-loss",
                )
            }
            RecoveryError::Unproven { from } => write!(
                out,
                "no member can tell whether the client's disk had more than the replica: commits waited for the disk alone when it was last heard. In doubt: LSN {from} and above. Use the client's disk, or give up what only it may have with --accept-loss"
            ),
            RecoveryError::Fenced { seen } => {
                write!(
                    out,
                    "another writer fenced this journal with epoch {seen}. If another directory of it is in use (a restored volume, a copy), \
                     that one is newer: do not use this one. If none is (a restore or take-over that never served), say that this \
                     directory is the newest: --newest"
                )
            }
        }
    }
}

impl core::error::Error for RecoveryError {}
