//! How members answer recovery, and why recovery fails.

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, Lsn};

/// The state of one member during recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAnswer {
    /// No connection exists yet, or it broke.
    Unreachable,
    /// The member is connected and not fenced yet.
    Connected,
    /// The member is fenced, and its window is being read.
    Reading,
    /// The member is fenced, and its window has been read.
    Complete,
    /// The lender does not hold the window: it restarted without its memory, freed the window, or has since
    /// opened another one in its place.
    Amnesiac,
    /// Its window begins above the replica's end, or an epoch that the replica never heard of has fenced it.
    /// The client went on without its data lender.
    AheadOfReplica,
    /// The member claims to hold more than fits its window, so nothing that it says is trusted.
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

/// Why recovery fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryError {
    /// Too few members answered: the missing ones could hold an acknowledged record.
    Missing {
        /// Number of members that must answer.
        needed: usize,
        /// Number of members that answered.
        answered: usize,
        /// The addresses of the others, and the state of each.
        missing: Vec<(String, PeerAnswer)>,
        /// End of the local log; records from here on are in doubt.
        from: Lsn,
        /// The highest LSN up to which an answering member holds everything; `None` if no member answered.
        held_max: Option<Lsn>,
    },
    /// A newer writer owns the journal.
    Fenced {
        /// The epoch of that writer.
        seen: Epoch,
    },
    /// The replica's view names no member that could tell whether the client's disk had more.
    Unproven {
        /// End of the replica; records from here on are in doubt.
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
                        "The members that answered hold nothing beyond the local log (their end: LSN {shown}), so probably nothing is missing. "
                    )?,
                    Some(shown) => write!(
                        out,
                        "The members that answered hold records up to LSN {shown}; these would be kept. "
                    )?,
                    None => out.write_str("No member can tell whether there were more records. ")?,
                }
                out.write_str(
                    "Bring a missing lender back, or accept the loss of what only it may hold with --accept-loss",
                )
            }
            RecoveryError::Unproven { from } => write!(
                out,
                "no member can tell whether the client's disk had more than the replica: commits waited for the disk alone when the client was last heard from. In doubt: LSN {from} and above. Use the client's disk, or accept the loss of what only it may have with --accept-loss"
            ),
            RecoveryError::Fenced { seen } => {
                write!(
                    out,
                    "another writer fenced this journal with epoch {seen}. If the journal is in use from another directory (a restored \
                     volume, a copy), that directory is newer: do not use this one. If not (a restore or takeover that never served), \
                     state that this directory is the newest with --newest"
                )
            }
        }
    }
}

impl core::error::Error for RecoveryError {}
