//! Putting the log together again: the local log's valid prefix, continued by whatever window holds the next
//! record, for as long as records chain.

use alloc::vec::Vec;

use crate::failure::{FailureClass, SystemCall};
use crate::id::Lsn;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::{IoError, StorageFile};
use crate::wire::{ChainPoint, CheckedRecord, CrcSeed, ScanStep, scan_step};

use super::logfile::{LogFile, LogScan};
use super::recovery::Recovery;

/// What one member's window held above the local log's end.
#[derive(Clone, Debug, Default)]
pub struct PeerWindow {
    /// Where the window begins at the member; everything below was on the writer's disk.
    pub trim: Lsn,
    /// The LSN of `bytes`' first byte.
    pub from: Lsn,
    /// The window's bytes from there.
    pub bytes: Vec<u8>,
    /// Records below this may have been acknowledged, by what all members together said they hold and by the
    /// rule.
    pub promised: Lsn,
}

/// Damage of the local log that nobody can repair, as far as the members told when they were asked: found
/// before they are sealed (rule 18). `durable`: everything below was on this disk, as its own files say.
/// `limit`: as [`AssembleOptions::limit`].
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
        // Whether the log ends there cannot be told.
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

/// The log as recovered: on the local file from its head to `end`, synced.
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

/// Why the log could not be put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssembleError {
    /// Writing what was taken, or syncing it, failed.
    Io(IoError),
    /// The record at `at` is bad everywhere, yet everything below `proof` was on the disk once, or the
    /// members said that they hold everything below `promised`; or the disk does not give the bytes at `at`,
    /// so that nobody can tell whether the log ends there.
    Corrupt {
        /// The first LSN that nobody has.
        at: Lsn,
        /// Below this, everything had been durable.
        proof: Lsn,
        /// Below this, records may have been acknowledged.
        promised: Lsn,
        /// The local disk refused to give the bytes.
        unreadable: Option<IoError>,
    },
}

impl core::fmt::Display for AssembleError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AssembleError::Io(error) => write!(
                out,
                "reading or writing the log failed at recovery: {error}; open the journal again"
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
                        "the log is damaged: LSN {at} to {proof} had been on the disk and is bad now"
                    )?;
                } else if promised > at {
                    write!(
                        out,
                        "members hold LSN {at} to {promised}, but what they give is damaged, and acknowledged records may lie there"
                    )?;
                } else {
                    write!(
                        out,
                        "the log cannot be read from LSN {at} on, and records may lie there"
                    )?;
                }
                if let Some(error) = unreadable {
                    write!(out, " ({error})")?;
                }
                out.write_str("; no member gives it whole. Restore the log file from a copy, or give up what follows with --accept-loss")
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

/// What assembling needs to know beside the log and the windows.
#[derive(Clone, Copy, Debug)]
pub struct AssembleOptions {
    /// Everything below was durable, by the superblock or the view.
    pub proof: Lsn,
    /// The end of the log's room: head plus capacity.
    pub limit: Lsn,
    /// Take what there is even where acknowledged records are missing.
    pub accept_loss: bool,
    /// The log's beginning came from another machine, as of a volume that is restored: what view and records
    /// call durable was so on that machine's disk. On this one it was, by its superblock, what lies below
    /// this.
    pub local_durable: Option<Lsn>,
}

/// Continues the local log, scanned as `local`, with the members' `windows`; writes what it took to the local
/// file and syncs. `genuine` is asked of every record that a member gave (its seal must open); the local file
/// is our own, and its checksums suffice.
///
/// What it takes is the longest chain that starts at the local prefix. It refuses when something had been
/// durable beyond the end it found (rule 8).
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
        // The disk was not even asked: the next attempt may read it. Nobody's word makes that a loss to
        // accept.
        return Err(error.into());
    }
    proof = proof.max(log.proof_beyond(taken.end.lsn, known.limit)?);
    // Bytes that cannot be read are no end: an acknowledged record may be among them. Nor is a bad record in
    // a member's window, which takes in whole records only: its memory has rotted, or it lies.
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
        // Valid records of the history that is given up lie behind the end. Left there, their word for what
        // had been durable would make the next recovery refuse again, and the log that begins now could chain
        // to none of them.
        log.erase(taken.end.lsn, known.limit)?;
    }
    // What was read may be in the page cache only, and marked clean there by a sync that failed: a sync now
    // would not write it. So what nothing of ours proves to have been on the disk is written again (at most
    // one window).
    let durable = known.local_durable.unwrap_or(known.proof.max(local.proof));
    log.rewrite(durable, taken.end.lsn)?;
    log.sync()?;
    Ok(taken)
}

/// Takes the longest run of records that any window offers at the end. `false`: none offers any.
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

/// The window's bytes from `lsn` on.
pub(super) fn from(window: &PeerWindow, lsn: Lsn) -> Option<&[u8]> {
    (window.from <= lsn)
        .then(|| window.bytes.get(lsn.since(window.from) as usize..))
        .flatten()
}

/// Where the run of valid records at the front of `bytes` ends.
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
