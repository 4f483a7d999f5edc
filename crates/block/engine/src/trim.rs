//! Trimming the journal. Records that both image and data lender have go at once. Records that only the image
//! has go when half of the journal is full, after their blocks are marked dirty. No writer ever waits for the
//! data lender.

use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::{LogError, LogState, Record, RecordLog};

use crate::device::{BLOCK_BYTES, SectorSpan};
use crate::dirty::DirtyMap;
use crate::disk::Disk;
use crate::error::{ApplyError, FileKind};
use crate::fetch::BlockFetch;
use crate::image::SparseFile;
use crate::limit::MARK_RUNS;
use crate::record::{VolumeChange, decode};
use crate::retained::RetainedStages;
use crate::stats::add;
use crate::sync::lock;

/// Bytes of journal that a record may take beside its payload, for the journal's own fields.
const RECORD_EXTRA: u64 = 4096;

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Trims the journal as far as it may and must be. Costs two atomic reads if there is nothing to do.
    pub(crate) fn trim_retained(&self, held: &mut RetainedStages) -> Result<(), ApplyError> {
        if held.is_empty() {
            return Ok(());
        }
        let flushed = Lsn(self.flushed.load(Ordering::Acquire));
        if let Some(both) = held.flushed(flushed) {
            self.trim(both).inspect_err(|_| held.put_back(both))?;
        }
        self.give_up(held, self.retained_bytes_max())
    }

    /// Trims more than necessary, so that the journal's head then stays for a while. Otherwise a copy whose
    /// journal begins there would be passed again before it is told.
    pub(crate) fn give_up_ahead(&self, held: &mut RetainedStages) -> Result<(), ApplyError> {
        self.give_up(held, self.retained_bytes_max() / 4 * 3)
    }

    /// Maximum bytes of journal kept for the data lender.
    fn retained_bytes_max(&self) -> u64 {
        let LogState {
            capacity,
            payload_max,
            ..
        } = self.log.state();
        // The largest record must still find room.
        let largest = payload_max as u64 + RECORD_EXTRA;
        (capacity / 2).min(capacity.saturating_sub(largest))
    }

    fn give_up(&self, held: &mut RetainedStages, most: u64) -> Result<(), ApplyError> {
        let LogState { head, tail, .. } = self.log.state();
        if let Some(surplus) = held.surplus(head, tail, most) {
            // Both steps under one lock: a concurrent resync that chooses blocks sees neither or both.
            let mut dirty = lock(&self.dirty);
            let marked = match &mut *dirty {
                Some(map) => self.mark_given_up(map, head, surplus),
                None => Ok(()),
            };
            let trimmed = marked.and_then(|()| self.trim(surplus));
            trimmed.inspect_err(|_| held.put_back(surplus))?;
        }
        Ok(())
    }

    fn trim(&self, head: Lsn) -> Result<(), ApplyError> {
        if head > self.log.state().head {
            self.log.trim(head).map_err(ApplyError::Log)?;
            self.signal.change();
        }
        Ok(())
    }

    /// Marks the blocks of the records from `head` up to `to`, where a stage ended. If that fails, the map
    /// records that it is incomplete, and the data lender will be sent every block. While this side has
    /// missing blocks that is not possible: the journal is kept, and writers get the error in the end.
    fn mark_given_up(&self, map: &mut DirtyMap<F>, head: Lsn, to: Lsn) -> Result<(), ApplyError> {
        let marked = self.mark_records(map, head, to);
        match marked.and_then(|()| of_dirty(map.cover(head, to))) {
            Ok(()) => add(&self.counters.given_up_bytes, to.since(head)),
            Err(error) => {
                add(&self.counters.mark_failures, 1);
                if self.missing.load(Ordering::Acquire) {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn mark_records(&self, map: &mut DirtyMap<F>, head: Lsn, to: Lsn) -> Result<(), ApplyError> {
        let bytes = self.bytes();
        let mut runs = Vec::with_capacity(MARK_RUNS);
        let mut from = head;
        while from < to {
            let (mut next, mut sound) = (from, true);
            let mut each = |record: Record<'_>| {
                match decode(record.kind, record.payload, bytes) {
                    Ok(Some(VolumeChange::Write { span, .. } | VolumeChange::Zero(span))) => {
                        runs.push(run_of(&span))
                    }
                    Ok(None) => (),
                    Err(_) => sound = false,
                }
                next = record.next;
                sound && next < to && runs.len() < MARK_RUNS
            };
            let stopped = self.log.read(from, &mut each).map_err(ApplyError::Log)?;
            next = next.max(stopped);
            if next == from || !sound {
                return Err(ApplyError::Log(LogError::Corrupt(from)));
            }
            from = next;
            of_dirty(map.mark(&mut runs))?;
            runs.clear();
        }
        Ok(())
    }
}

/// The blocks of a record's span: the first, and the one behind the last.
fn run_of(span: &SectorSpan) -> (u64, u64) {
    (span.offset() / BLOCK_BYTES, span.end().div_ceil(BLOCK_BYTES))
}

pub(crate) fn of_dirty<T>(done: Result<T, netram_proto::port::IoError>) -> Result<T, ApplyError> {
    let file = FileKind::Dirty;
    done.map_err(|cause| ApplyError::File { file, cause })
}
