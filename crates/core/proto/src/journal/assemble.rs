//! Assembling the log: the local log's valid prefix, continued by any member's window that holds the next
//! record, for as long as records chain.

use alloc::vec::Vec;

use crate::failure::{FailureClass, SystemCall};
use crate::id::Lsn;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::{IoError, StorageFile};
use crate::wire::{ChainPoint, CheckedRecord, CrcSeed, ScanStep, scan_step};

use super::logfile::{LogFile, LogScan};
use super::recovery::Recovery;

/// The part of one member's window above the local log's end.
#[derive(Clone, Debug, Default)]
pub struct PeerWindow {
    /// Start of the window at the member; everything below was on the writer's disk.
    pub trim: Lsn,
    /// The LSN of `bytes`' first byte.
    pub from: Lsn,
    /// The window's bytes from `from` on.
    pub bytes: Vec<u8>,
    /// Records below this may have been acknowledged, according to all members' claims and the commit rule.
    pub promised: Lsn,
}

/// Finds damage of the local log that no member can repair, according to the probe's answers. It is called
/// before any member is fenced (rule 18). `durable` is the LSN below which this disk's own files prove that
/// everything was on it; `limit` is that of [`AssembleOptions::limit`].
pub fn beyond_repair<F: StorageFile>(
    log: &LogFile<F>,
    local: &LogScan,
    durable: Lsn,
    limit: Lsn,
    inquiry: &Recovery,
) -> Option<AssembleError> {
    let at = local.end.lsn;
    let proof = match log.proof_beyond(at, limit) {
        Ok(beyond) => beyond.max(durable).max(local.proof).max(inquiry.trimmed()),
        // The end of the log cannot be determined.
        Err(error) => return Some(AssembleError::Io(error)),
    };
    let lost = at < proof || local.unreadable.is_some();
    (lost && !inquiry.may_continue()).then_some(AssembleError::Corrupt {
        at,
        proof,
        promised: Lsn(0),
        unreadable: local.unreadable,
    })
}

/// The recovered log: in the local file from its head to `end`, synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssembledLog {
    /// Where the next record goes.
    pub end: ChainPoint,
    /// Bytes that came from members rather than from the local file.
    pub from_members: u64,
    /// Records that came from members.
    pub records_from_members: u64,
    /// Bytes among them that repaired a damaged stretch of the local file.
    pub repaired: u64,
}

/// Why the log could not be assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssembleError {
    /// Reading the local log, or writing and syncing records from members, failed.
    Io(IoError),
    /// No intact record exists at `at`, although everything below `proof` was on the disk once, or enough
    /// members claim everything below `promised`. Or the disk cannot read the bytes at `at`, so that the end
    /// of the log is unknown.
    Corrupt {
        /// The first LSN without an intact copy.
        at: Lsn,
        /// Everything below was durable once.
        proof: Lsn,
        /// Records below may have been acknowledged.
        promised: Lsn,
        /// The error with which the local disk failed to read the bytes.
        unreadable: Option<IoError>,
    },
}

impl core::fmt::Display for AssembleError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AssembleError::Io(error) => write!(
                out,
                "reading or writing the log failed during recovery: {error}; open the journal again"
            ),
            AssembleError::Corrupt {
                at,
                proof,
                promised,
                unreadable,
            } => {
                if proof > at {
                    write!(
                        out,
                        "the log is damaged: LSN {at} to {proof} was on the disk once and is invalid now"
                    )?;
                } else if promised > at {
                    write!(
                        out,
                        "members hold LSN {at} to {promised}, but their copies are damaged, and acknowledged records may be among them"
                    )?;
                } else {
                    write!(
                        out,
                        "the log cannot be read from LSN {at} on, and records may follow"
                    )?;
                }
                if let Some(error) = unreadable {
                    write!(out, " ({error})")?;
                }
                out.write_str("; no member has an intact copy. Restore the log file from a copy, or discard everything from there on with --accept-loss")
            }
        }
    }
}

impl core::error::Error for AssembleError {}

impl From<IoError> for AssembleError {
    fn from(error: IoError) -> AssembleError {
        AssembleError::Io(error)
    }
}

/// Inputs of [`assemble()`] beside the log and the windows.
#[derive(Clone, Copy, Debug)]
pub struct AssembleOptions {
    /// Everything below was durable, according to the superblock or the view.
    pub proof: Lsn,
    /// The end of the log's space: head plus capacity.
    pub limit: Lsn,
    /// Recover the rest even if acknowledged records are missing.
    pub accept_loss: bool,
    /// Set if the log's beginning came from another machine, as for a restored volume. View and records then
    /// say what was durable on that machine's disk. This LSN, from the superblock, says what was durable on
    /// this one's.
    pub local_durable: Option<Lsn>,
}

/// Continues the local log, scanned as `local`, with the members' `windows`. Writes the added records to the
/// local file and syncs it. `genuine` checks every record that a member gave: its AEAD tag must verify. For
/// the local file its checksums suffice.
///
/// The result is the longest chain that starts at the local prefix.
///
/// # Errors
///
/// [`AssembleError::Corrupt`] if records beyond the end that was found had been durable or may have been
/// acknowledged (rule 8), unless the loss is accepted. [`AssembleError::Io`] if the file failed.
pub fn assemble<F: StorageFile>(
    log: &LogFile<F>,
    local: &LogScan,
    windows: &[PeerWindow],
    known: AssembleOptions,
    planted: FaultSwitch,
    genuine: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
) -> Result<AssembledLog, AssembleError> {
    let mut taken = AssembledLog {
        end: local.end,
        from_members: 0,
        records_from_members: 0,
        repaired: 0,
    };
    let mut proof = windows
        .iter()
        .map(|window| window.trim)
        .fold(known.proof.max(local.proof), Lsn::max);
    let unreadable = loop {
        let from_members = continue_from_members(log, &mut taken, windows, known.limit, planted, genuine)?;
        let before = taken.end;
        let scan = log.scan(taken.end, known.limit, &mut |_| true);
        taken.end = scan.end;
        proof = proof.max(scan.proof);
        if scan.end != before {
            taken.repaired = taken.from_members;
        }
        if !from_members && scan.end == before {
            break scan.unreadable;
        }
    };
    if let Some(error) = unreadable
        && SystemCall::Read.class(error) == FailureClass::Retry
    {
        // The call did not reach the disk, so the next attempt may succeed. No operator's word makes that a
        // loss to accept.
        return Err(error.into());
    }
    proof = proof.max(log.proof_beyond(taken.end.lsn, known.limit)?);
    // Unreadable bytes are not the end: an acknowledged record may be among them. Nor is a bad record in a
    // member's window, since members accept only whole records: the member's memory is damaged, or it lies.
    let promised = windows
        .iter()
        .map(|window| window.promised)
        .max()
        .unwrap_or_default();
    let lost = taken.end.lsn < proof.max(promised) || unreadable.is_some();
    if lost && !known.accept_loss && !planted.is(PlantedFault::CorruptionIsEnd) {
        return Err(AssembleError::Corrupt {
            at: taken.end.lsn,
            proof,
            promised,
            unreadable,
        });
    }
    if lost {
        // Valid records of the discarded history lie beyond the end. If they stayed, their stable LSNs would
        // make the next recovery refuse again, and the continued log could not chain to them.
        log.erase(taken.end.lsn, known.limit)?;
    }
    // The bytes read may exist only in the page cache, marked clean by a failed sync, and a sync now would
    // not write them. So everything that this machine cannot prove to be on the disk is rewritten (at most
    // one window).
    let durable = known.local_durable.unwrap_or(known.proof.max(local.proof));
    log.rewrite(durable, taken.end.lsn)?;
    log.sync()?;
    Ok(taken)
}

/// Appends the longest run of records that any window offers at the end. `false` if none offers any.
fn continue_from_members<F: StorageFile>(
    log: &LogFile<F>,
    taken: &mut AssembledLog,
    windows: &[PeerWindow],
    limit: Lsn,
    planted: FaultSwitch,
    genuine: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
) -> Result<bool, AssembleError> {
    let mut longest: Option<(ChainPoint, &[u8], u64)> = None;
    for window in windows {
        let Some(bytes) = from(window, taken.end.lsn) else {
            continue;
        };
        let (end, records) = walk(log.seed(), bytes, taken.end, limit, planted, genuine);
        if end.lsn > longest.map_or(taken.end.lsn, |(link, ..)| link.lsn) {
            longest = Some((end, &bytes[..end.lsn.since(taken.end.lsn) as usize], records));
        }
    }
    let Some((end, bytes, records)) = longest else {
        return Ok(false);
    };
    log.write(taken.end.lsn, bytes)?;
    taken.end = end;
    taken.from_members += bytes.len() as u64;
    taken.records_from_members += records;
    Ok(true)
}

/// The window's bytes from `lsn` on; `None` if it begins later or ends earlier.
pub(super) fn from(window: &PeerWindow, lsn: Lsn) -> Option<&[u8]> {
    (window.from <= lsn)
        .then(|| window.bytes.get(lsn.since(window.from) as usize..))
        .flatten()
}

/// The end of the run of valid records at the front of `bytes`, and their number.
pub(super) fn walk(
    seed: CrcSeed,
    bytes: &[u8],
    start: ChainPoint,
    limit: Lsn,
    planted: FaultSwitch,
    genuine: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
) -> (ChainPoint, u64) {
    let (mut link, mut at, mut records) = (start, 0, 0);
    while let ScanStep::Record(header) = scan_step(&bytes[at..], link, seed, planted) {
        let record = CheckedRecord {
            header,
            bytes: &bytes[at..at + header.length],
        };
        if header.next() > limit || !(genuine(record) || planted.is(PlantedFault::ForgeryAccepted)) {
            break;
        }
        link = header.next_point();
        at += header.length;
        records += 1;
    }
    (link, records)
}
