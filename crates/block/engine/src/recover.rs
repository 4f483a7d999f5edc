//! Recovery: applies the journal from its head through the usual stages to the image, before any read.
//!
//! Recovery starts at the superblock's `applied`, which may lie behind the journal's head. The image may have
//! any part of the stage that was being applied, whole or torn. Every record is applied again in order, so
//! each sector ends with the bytes of the last one.

use netram_proto::id::Lsn;
use netram_proto::port::{LogError, Record, RecordLog};

use crate::apply::ApplyProgress;
use crate::disk::Disk;
use crate::error::{ApplyError, DiskOpenError, FollowError};
use crate::fetch::BlockFetch;
use crate::image::SparseFile;
use crate::record::{VolumeChange, decode};
use crate::sync::lock;

/// Result of recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskRecovery {
    /// Number of the volume's records in the journal.
    pub records: u64,
    /// Bytes written by them.
    pub bytes: u64,
    /// LSN at which the replay began; the image had every record below it.
    pub start: Lsn,
    /// LSN at which the replay ended.
    pub end: Lsn,
    /// Number of blocks of which the journal had only a part, on a base that did not match its checksum. The
    /// base was torn by the crash, or is damaged, and was accepted as found.
    pub unverified: u64,
}

/// Applies the journal from `start`. Blocks that a crash may have torn have records below `applying`.
pub(crate) fn replay<L: RecordLog, F: SparseFile, C: BlockFetch>(
    disk: &Disk<L, F, C>,
    start: Lsn,
    applying: Lsn,
) -> Result<DiskRecovery, DiskOpenError> {
    let stable = disk.log.state().stable;
    let mut recovered = DiskRecovery {
        start,
        end: stable,
        ..DiskRecovery::default()
    };
    let mut from = start;
    while from < stable {
        // Records of blocks that may be torn get a stage of their own: behind it, every base must match its
        // checksum.
        let until = if from < applying { applying } else { stable };
        let next = read_stage(disk, from, until, &mut recovered)?;
        if next == from {
            // Below the stable LSN there must be a record.
            return Err(DiskOpenError::Apply(ApplyError::Log(LogError::Corrupt(from))));
        }
        from = next;
        lock(&disk.stages).end_open();
        while disk.apply_step().map_err(DiskOpenError::Apply)? != ApplyProgress::Idle {}
    }
    recovered.unverified = disk.counters.read().unverified_bases;
    Ok(recovered)
}

/// Reads records into stages, starting at `from`, until a stage is full. Returns where it stopped.
pub(crate) fn read_stage<L: RecordLog, F: SparseFile, C: BlockFetch>(
    disk: &Disk<L, F, C>,
    from: Lsn,
    until: Lsn,
    recovered: &mut DiskRecovery,
) -> Result<Lsn, FollowError> {
    let bytes = disk.bytes();
    let (mut next, mut refused) = (from, None);
    let mut each = |record: Record<'_>| {
        let change = match decode(record.kind, record.payload, bytes) {
            Ok(change) => change,
            Err(cause) => {
                let lsn = record.lsn;
                refused = Some(FollowError::Record { lsn, cause });
                return false;
            }
        };
        next = record.next;
        let Some(change) = change else { return next < until };
        recovered.records += 1;
        if let VolumeChange::Write { data, .. } = change {
            recovered.bytes += data.len() as u64;
        }
        // The lock is taken for each record, so that readers can use the stages in between.
        let mut stages = lock(&disk.stages);
        !stages.take(record.next, &change) && stages.has_room() && next < until
    };
    let stopped = disk.log.read(from, &mut each);
    let stopped = stopped.map_err(FollowError::Log)?;
    match refused {
        Some(error) => Err(error),
        // The log may skip records of its own without showing them.
        None => Ok(next.max(stopped)),
    }
}
