//! An open volume: writes go to the journal and the open stage, and reads combine stages and image.
//!
//! Locks, in the order in which they are taken: `applier` (one step), `superblock`, `dirty`, `writing`
//! (blocks and checksums differ), `order` (the journal and the stages have the same order), the signal's,
//! `stages`. A read takes `stages` briefly. It takes `writing` only if a block does not match its checksum,
//! as happens while the applier writes it, and `applier` only to repair a damaged block.
//!
//! Reads look at the stages before the image. A block leaves its stage only after the image has it, so a
//! block in no stage is in the image, at least as new as at the time of the look.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use netram_proto::id::Lsn;
use netram_proto::journal::SlotPair;
use netram_proto::port::{AppendError, CommitTicket, Durability, LogState, RecordLog, StorageFile};
use netram_proto::time::Time;

use crate::apply::{ApplyProgress, StageApplier};
use crate::device::{BlockDevice, DeviceGeometry, PendingWrite, SectorSpan};
use crate::dirty::DirtyMap;
use crate::error::{ApplyError, DeviceError, DiskGrowError, FileKind};
use crate::fetch::{BlockFetch, NoCopy};
use crate::image::{SparseFile, VolumeImage};
use crate::limit::REQUEST_BYTES_MAX;
use crate::open::FlushPolicy;
use crate::record::VolumeChange;
use crate::recover::DiskRecovery;
use crate::resync::ReplicaStatus;
use crate::stage_queue::{StageQueue, StagesStatus};
use crate::stats::{Counters, Statistics, add};
use crate::superblock::{VolumeSuperblock, is_volume_size};
use crate::sync::{ApplierTask, RoomWait, StageSignal, lock};

/// Status of a volume.
#[derive(Clone, Copy, Debug)]
pub struct DiskStatus {
    /// The superblock.
    pub superblock: VolumeSuperblock,
    /// State of the journal.
    pub log: LogState,
    /// Stages and their memory.
    pub stages: StagesStatus,
    /// LSN below which the image has every record, flushed.
    pub applied: Lsn,
    /// Journal and blocks kept for the data lender; `None` without one.
    pub replica: Option<ReplicaStatus>,
    /// Reason why the last stage was not applied; `None` again once one is.
    pub failure: Option<ApplyError>,
    /// Counters.
    pub statistics: Statistics,
}

/// Reason why a change is not in the journal.
enum AppendRefusal {
    /// The journal is full of records that the applier has not applied yet; this is its head.
    UntilHeadMoves(Lsn),
    Failed(AppendError),
}

/// An open volume over a log.
pub struct Disk<L, F, C = NoCopy> {
    pub(crate) log: L,
    pub(crate) image: VolumeImage<F>,
    /// Source of blocks that the image does not have.
    pub(crate) copy: C,
    pub(crate) superblock: Mutex<(F, SlotPair, VolumeSuperblock)>,
    pub(crate) bytes: AtomicU64,
    /// Whether blocks may be missing. Copied from the superblock, to be read without its lock.
    pub(crate) missing: AtomicBool,
    /// LSN of the copy's state that has the missing blocks; any later state has them too.
    pub(crate) missing_from: Lsn,
    pub(crate) flush: FlushPolicy,
    pub(crate) record_data_max: usize,
    pub(crate) order: Mutex<()>,
    pub(crate) stages: Mutex<StageQueue>,
    pub(crate) applier: Mutex<StageApplier>,
    pub(crate) writing: Mutex<()>,
    /// LSN below which the image has every record, flushed.
    pub(crate) applied: AtomicU64,
    /// LSN below which the data lender has every record, flushed.
    pub(crate) flushed: AtomicU64,
    /// Whether the volume has a dirty map, so that journal is kept for a data lender.
    pub(crate) has_replica: bool,
    pub(crate) dirty: Mutex<Option<DirtyMap<F>>>,
    pub(crate) bad: Mutex<BTreeSet<u64>>,
    pub(crate) signal: StageSignal,
    pub(crate) counters: Counters,
    pub(crate) recovered: DiskRecovery,
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Returns the journal, to be closed. Records that are not in the image yet are in the journal.
    pub fn into_log(self) -> L {
        self.log
    }

    /// The journal.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// Result of recovery at the opening.
    pub fn recovered(&self) -> DiskRecovery {
        self.recovered
    }

    /// Current status of the volume.
    pub fn status(&self) -> DiskStatus {
        // Each lock is released before the next is taken. In one expression all would be held to its end, and
        // waiting writers look at the stages with the signal locked.
        let superblock = lock(&self.superblock).2;
        let stages = lock(&self.stages).status();
        DiskStatus {
            superblock,
            log: self.log.state(),
            stages,
            applied: self.applied(),
            replica: self.replica_status(),
            failure: self.signal.failure(),
            statistics: self.counters.read(),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// LSN below which the image has every record, flushed.
    pub fn applied(&self) -> Lsn {
        Lsn(self.applied.load(Ordering::Acquire))
    }

    pub(crate) fn set_applied(&self, end: Lsn) {
        self.applied.store(end.0, Ordering::Release);
    }

    /// Stores durably that the image has every record below `applied`, and possibly some below `applying`.
    pub(crate) fn store_position(&self, applied: Lsn, applying: Lsn) -> Result<(), ApplyError> {
        self.change_superblock(|superblock| {
            superblock.applied = applied;
            // A record that a crash may have torn stays marked until a recovery has applied it.
            superblock.applying = superblock.applying.max(applying);
        })
    }

    pub(crate) fn change_superblock(
        &self,
        change: impl FnOnce(&mut VolumeSuperblock),
    ) -> Result<(), ApplyError> {
        let (file, slots, superblock) = &mut *lock(&self.superblock);
        let mut changed = *superblock;
        change(&mut changed);
        if changed != *superblock {
            let stored = slots.store(&*file, &changed.encode());
            stored.map_err(|failure| ApplyError::File {
                file: FileKind::Superblock,
                cause: failure.error,
            })?;
            *superblock = changed;
        }
        Ok(())
    }

    /// Current size and limits.
    pub fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            bytes: self.bytes(),
            request_bytes_max: REQUEST_BYTES_MAX,
        }
    }

    /// See [`BlockDevice::probe`]. The log's own locks are not covered.
    pub fn probe(&self) {
        drop(lock(&self.stages));
    }

    /// See [`BlockDevice::write`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`], as for every request.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        SectorSpan::check_request(offset, bytes.len(), self.bytes())?;
        let mut pending = PendingWrite::default();
        let mut at = offset;
        for data in bytes.chunks(self.record_data_max) {
            let span = SectorSpan::check(at, data.len() as u64, self.bytes())?;
            pending = self.log_change(&VolumeChange::Write { span, data })?;
            at = span.end();
        }
        add(&self.counters.writes, 1);
        add(&self.counters.written_bytes, bytes.len() as u64);
        Ok(pending)
    }

    /// See [`BlockDevice::zero`] and [`BlockDevice::discard`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`], as for every request.
    pub fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        let span = SectorSpan::check(offset, length, self.bytes())?;
        add(&self.counters.zeros, 1);
        match length {
            0 => Ok(PendingWrite::default()),
            _ => self.log_change(&VolumeChange::Zero(span)),
        }
    }

    /// Appends one record to the journal, and in the same order to the open stage.
    fn log_change(&self, change: &VolumeChange<'_>) -> Result<PendingWrite, DeviceError> {
        loop {
            let order = lock(&self.order);
            if !lock(&self.stages).has_room() {
                drop(order);
                self.wait_until(&|| lock(&self.stages).has_room())?;
                continue;
            }
            match self.append_in_order(change) {
                Ok((pending, closed)) => {
                    drop(order);
                    if closed {
                        self.signal.request();
                    }
                    return Ok(pending);
                }
                Err(AppendRefusal::UntilHeadMoves(head)) => {
                    // The journal is full of records that are not in the image yet.
                    drop(order);
                    self.signal.request();
                    let moved = || self.log.state().head > head || self.nothing_to_trim();
                    self.wait_until(&moved)?;
                }
                Err(AppendRefusal::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// Appends with `order` held, so that no other writer takes the room found here. Also returns whether a
    /// stage was closed.
    fn append_in_order(&self, change: &VolumeChange<'_>) -> Result<(PendingWrite, bool), AppendRefusal> {
        let mut was_empty = false;
        loop {
            // Read before the attempt: a trim after it makes room that the attempt did not see.
            let head = self.log.state().head;
            let mut fill = |into: &mut [u8]| change.encode(into);
            match self.log.append(change.kind(), change.payload_bytes(), &mut fill) {
                Ok(ticket) => {
                    let closed = lock(&self.stages).take(ticket.end, change);
                    return Ok((PendingWrite(ticket.end), closed));
                }
                Err(error @ AppendError::Full { .. }) => {
                    lock(&self.stages).end_open();
                    match self.nothing_to_trim() {
                        false => return Err(AppendRefusal::UntilHeadMoves(head)),
                        // No record that could make room was left even before the last attempt.
                        true if was_empty => return Err(AppendRefusal::Failed(error)),
                        true => was_empty = true,
                    }
                }
                Err(error) => return Err(AppendRefusal::Failed(error)),
            }
        }
    }

    /// Waits for the applier thread, or applies stages itself if there is none.
    fn wait_until(&self, enough: &dyn Fn() -> bool) -> Result<(), DeviceError> {
        add(&self.counters.stalls, 1);
        while !enough() {
            match self.signal.wait(enough) {
                RoomWait::Changed => (),
                RoomWait::Failed(error) => return Err(error.into()),
                RoomWait::Unattended => drop(self.apply_step()?),
            }
        }
        Ok(())
    }

    /// See [`BlockDevice::wait`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the commit failed: fenced, closed, or the disk failed.
    pub fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError> {
        self.wait_for(pending.0, Durability::Remote)
    }

    pub(crate) fn wait_for(&self, end: Lsn, durability: Durability) -> Result<(), DeviceError> {
        let ticket = CommitTicket { lsn: end, end };
        Ok(self.log.wait(ticket, durability).map(drop)?)
    }

    /// See [`BlockDevice::flush`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the commit failed: fenced, closed, or the disk failed.
    pub fn flush(&self) -> Result<(), DeviceError> {
        add(&self.counters.flushes, 1);
        let logged = lock(&self.stages).end();
        match self.flush {
            FlushPolicy::Remote => self.wait_for(logged, Durability::Remote),
            FlushPolicy::Disk => self.wait_for(logged, Durability::Disk),
        }
    }

    /// Whether the journal has no records that could be trimmed: no stage waits, and none is kept for the
    /// data lender.
    fn nothing_to_trim(&self) -> bool {
        lock(&self.stages).is_empty() && self.log.state().head >= self.applied()
    }

    /// Does one bounded step of applying the oldest closed stage and trimming the journal.
    ///
    /// # Errors
    ///
    /// [`ApplyError`] if a file or the journal failed. The stage is kept and the next step starts it over.
    pub fn apply_step(&self) -> Result<ApplyProgress, ApplyError> {
        let stepped = lock(&self.applier).step(self);
        match stepped {
            Ok(ApplyProgress::Applied(_)) => self.signal.report(None),
            Err(error) => self.signal.report(Some(error)),
            Ok(_) => (),
        }
        stepped
    }

    /// Ends the open stage if it is old enough at `now`.
    pub fn tick(&self, now: Time) {
        lock(&self.stages).tick(now);
    }

    /// Applies every record written before the call to the image.
    ///
    /// # Errors
    ///
    /// [`ApplyError`] from the step that failed.
    pub fn drain(&self) -> Result<(), ApplyError> {
        let target = lock(&self.stages).end();
        lock(&self.stages).end_open();
        while self.applied() < target && !lock(&self.stages).is_empty() {
            if self.apply_step()? == ApplyProgress::Idle {
                // The open stage had no room to close until a closed one was applied.
                lock(&self.stages).end_open();
            }
        }
        Ok(())
    }

    /// Announces a thread that applies stages. Until [`Disk::applier_ended`], writers wait for it instead of
    /// applying stages themselves.
    pub fn applier_started(&self) {
        self.signal.applier_started();
    }

    /// The applier thread has ended.
    pub fn applier_ended(&self) {
        self.signal.applier_ended();
    }

    /// Blocks the applier thread until a stage is closed, for at most `longest`.
    pub fn wait_for_work(&self, longest: Duration) -> ApplierTask {
        self.signal.next(longest)
    }

    /// Tells the applier thread to end.
    pub fn stop(&self) {
        self.signal.stop();
    }

    /// Makes the open volume larger. The new bytes are zeros.
    ///
    /// # Errors
    ///
    /// [`DiskGrowError`] if the size is invalid or smaller, or a file failed. The size is then unchanged.
    pub fn grow(&self, bytes: u64) -> Result<(), DiskGrowError> {
        let mut applier = lock(&self.applier);
        let (file, slots, superblock) = &mut *lock(&self.superblock);
        if !is_volume_size(bytes) {
            return Err(DiskGrowError::Size { asked: bytes });
        }
        if bytes < superblock.bytes {
            return Err(DiskGrowError::Shrink {
                bytes: superblock.bytes,
                asked: bytes,
            });
        }
        let image = self.image.extend(bytes).and_then(|()| self.image.sync_blocks());
        let synced = image
            .map_err(|cause| (FileKind::Image, cause))
            .and_then(|()| self.image.sync_sums().map_err(|cause| (FileKind::Sums, cause)));
        if let Err((file, cause)) = synced {
            // The operating system reports a failed sync only once, so the stage being applied must not trust
            // its own sync.
            applier.begin_again(ApplyError::File { file, cause });
            return Err(DiskGrowError::File { file, cause });
        }
        // Until the superblock has the new size, the files are merely larger than necessary.
        let grown = VolumeSuperblock { bytes, ..*superblock };
        let stored = slots.store(&*file, &grown.encode());
        stored.map_err(|failure| DiskGrowError::File {
            file: FileKind::Superblock,
            cause: failure.error,
        })?;
        *superblock = grown;
        self.bytes.store(bytes, Ordering::Release);
        Ok(())
    }
}

impl<L, F, C> fmt::Debug for Disk<L, F, C> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let superblock = lock(&self.superblock).2;
        out.debug_struct("Disk")
            .field("superblock", &superblock)
            .finish_non_exhaustive()
    }
}

impl<L: RecordLog + Send + Sync, F: SparseFile + StorageFile + Send + Sync, C: BlockFetch + Send + Sync>
    BlockDevice for Disk<L, F, C>
{
    fn geometry(&self) -> DeviceGeometry {
        Disk::geometry(self)
    }

    fn probe(&self) {
        Disk::probe(self);
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        Disk::read(self, offset, into)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<PendingWrite, DeviceError> {
        Disk::write(self, offset, bytes)
    }

    fn zero(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        Disk::zero(self, offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> Result<PendingWrite, DeviceError> {
        Disk::zero(self, offset, length)
    }

    fn wait(&self, pending: PendingWrite) -> Result<(), DeviceError> {
        Disk::wait(self, pending)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Disk::flush(self)
    }

    fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        Disk::extents(self, offset, length, each)
    }
}
