//! The data lender's side: the image follows a journal that another machine writes, and takes blocks where
//! the journal no longer reaches back.
//!
//! The driver writes received records into the journal and syncs it, then calls [`Disk::follow`] and
//! [`Disk::apply_step`].
//!
//! A resync has these steps, in this order: store durably that the copy is inconsistent; [`Disk::bring_up`];
//! begin the journal anew; [`Disk::restart`]; put holes and blocks; [`Disk::sync`]. With `restarted` in its
//! options, the volume can be opened after a crash between any two.
//!
//! Records may arrive and be followed during a resync. A block is newer than every record that arrived before
//! it, so it replaces what the stages have of it. Earlier records that are followed later make the block
//! older again, until the records behind them have arrived. A writer that trimmed those records sends the
//! block only after the journal has begun anew.

use netram_proto::id::Lsn;
use netram_proto::port::{LogError, RecordLog};

use crate::apply::{StageApplier, of_image};
use crate::device::{BLOCK_BYTES, SectorSpan};
use crate::disk::Disk;
use crate::error::{ApplyError, DeviceError, FileKind, FollowError};
use crate::fetch::{BlockFetch, FetchError};
use crate::image::{SparseFile, sum};
use crate::limit::{READ_BLOCKS, STEP_ZERO_BLOCKS};
use crate::recover::{DiskRecovery, read_stage};
use crate::resync::{DIGEST_BYTES, digest};
use crate::stage::BLOCK;
use crate::stats::add;
use crate::sync::lock;

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Reads new records of the journal's disk into the stages, as far as these have room. If it stops before
    /// the journal's stable end, an apply step makes room. Returns where it stopped; everything below can be
    /// read here.
    ///
    /// # Errors
    ///
    /// [`FollowError`] if the journal cannot be read or has a record that is not of this volume.
    pub fn follow(&self) -> Result<Lsn, FollowError> {
        let _order = lock(&self.order);
        let stable = self.log.state().stable;
        loop {
            let from = lock(&self.stages).end();
            if from >= stable || !lock(&self.stages).has_room() {
                return Ok(from);
            }
            let mut passed = DiskRecovery::default();
            let next = read_stage(self, from, stable, &mut passed)?;
            if next == from {
                return Err(FollowError::Log(LogError::Corrupt(from)));
            }
            lock(&self.stages).pass(next);
            self.signal.request();
        }
    }

    /// Applies everything on the journal's disk to the image, flushed.
    ///
    /// # Errors
    ///
    /// [`FollowError`] if the journal cannot be read or applied.
    pub fn bring_up(&self) -> Result<(), FollowError> {
        while self.follow()? < self.log.state().stable {
            self.drain().map_err(FollowError::Apply)?;
        }
        self.drain().map_err(FollowError::Apply)
    }

    /// The journal was begun anew: the image now follows it from its head. Records that were not applied are
    /// forgotten.
    ///
    /// # Errors
    ///
    /// [`ApplyError::File`] if the superblock cannot be written.
    pub fn restart(&self) -> Result<(), ApplyError> {
        let mut applier = lock(&self.applier);
        let _order = lock(&self.order);
        let head = self.log.state().head;
        applier.restart();
        {
            let mut stages = lock(&self.stages);
            *stages = stages.restarted(head);
        }
        self.set_applied(head);
        self.change_superblock(|superblock| {
            (superblock.applied, superblock.applying) = (head, head);
        })
    }

    /// Writes whole blocks into the image from number `first`, after [`Disk::restart`]. Durable after
    /// [`Disk::sync`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the range is invalid or the image cannot be written.
    pub fn put_blocks(&self, first: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        SectorSpan::check_request(first.saturating_mul(BLOCK_BYTES), bytes.len(), self.bytes())?;
        if !bytes.len().is_multiple_of(BLOCK) {
            let (offset, length) = (first * BLOCK_BYTES, bytes.len() as u64);
            return Err(DeviceError::Unaligned { offset, length });
        }
        let mut applier = lock(&self.applier);
        applier.put = true;
        let numbers = first..;
        let sums: Vec<u8> = (numbers.zip(bytes.chunks_exact(BLOCK)))
            .flat_map(|(block, bytes)| sum(block, bytes).to_le_bytes())
            .collect();
        let _writing = lock(&self.writing);
        self.image.write(first, &sums, bytes).map_err(DeviceError::Io)?;
        let mut stages = lock(&self.stages);
        for (block, bytes) in (first..).zip(bytes.as_chunks::<BLOCK>().0) {
            stages.replace(block, bytes);
        }
        add(&self.counters.blocks, bytes.len() as u64 / BLOCK_BYTES);
        Ok(())
    }

    /// Turns the blocks from `first` up to `behind` into holes, otherwise as [`Disk::put_blocks`]. Durable
    /// after [`Disk::sync`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the range is invalid or the image cannot be written.
    pub fn put_hole(&self, first: u64, behind: u64) -> Result<(), DeviceError> {
        let offset = first.saturating_mul(BLOCK_BYTES);
        let length = behind.saturating_sub(first).saturating_mul(BLOCK_BYTES);
        SectorSpan::check(offset, length, self.bytes())?;
        if behind < first {
            return Err(DeviceError::Unaligned { offset, length });
        }
        let mut at = first;
        while at < behind {
            let end = behind.min(at + STEP_ZERO_BLOCKS);
            let mut applier = lock(&self.applier);
            applier.put = true;
            let _writing = lock(&self.writing);
            self.image.punch(at, end).map_err(DeviceError::Io)?;
            lock(&self.stages).replace_by_hole(at, end);
            add(&self.counters.holes, end - at);
            at = end;
        }
        Ok(())
    }

    /// Makes the blocks put into the image durable. After an error all of them must be put again, from
    /// [`Disk::restart`] on.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if this sync, or one since the first block was put, failed.
    pub fn sync(&self) -> Result<(), DeviceError> {
        Ok(self.sync_files(&mut lock(&self.applier))?)
    }

    pub(crate) fn sync_files(&self, applier: &mut StageApplier) -> Result<(), ApplyError> {
        let image = self.image.sync_blocks().map_err(of_image);
        let synced = image.and_then(|()| {
            let file = FileKind::Sums;
            let sums = self.image.sync_sums();
            sums.map_err(|cause| ApplyError::File { file, cause })
        });
        if let Err(error) = synced {
            // The stage being applied must not trust its own sync either.
            applier.begin_again(error);
        }
        // Every block put before is durable, or its loss is reported here.
        applier.put = false;
        match applier.put_lost.take() {
            Some(error) => Err(error),
            None => synced,
        }
    }

    /// Answer to the writer's [`BlockFetch`]: blocks from `first`, as of a journal that has everything below
    /// `at_least`.
    ///
    /// # Errors
    ///
    /// [`FetchError::Damaged`] if a block fails its checksum here, [`FetchError::Unreachable`] otherwise.
    pub fn answer(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        // Records on the journal's disk need not be in the stages yet.
        let followed = self.follow().map_err(|_| FetchError::Unreachable)?;
        if followed < at_least {
            return Err(FetchError::Unreachable);
        }
        match self.read_own(first, into) {
            Ok(()) => Ok(()),
            Err(DeviceError::Corrupt { block }) => {
                self.note_bad(block);
                Err(FetchError::Damaged)
            }
            Err(_) => Err(FetchError::Unreachable),
        }
    }

    /// For each block from `first`: whether its digest differs from the given one.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the range is invalid or the image cannot be read.
    pub fn differing(&self, first: u64, digests: &[[u8; DIGEST_BYTES]]) -> Result<Vec<bool>, DeviceError> {
        let length = digests.len().saturating_mul(BLOCK);
        SectorSpan::check_request(first.saturating_mul(BLOCK_BYTES), length, self.bytes())?;
        let mut bytes = vec![0; digests.len().min(READ_BLOCKS) * BLOCK];
        let mut differing = Vec::with_capacity(digests.len());
        for part in digests.chunks(READ_BLOCKS) {
            let at = first + differing.len() as u64;
            let bytes = &mut bytes[..part.len() * BLOCK];
            let whole = self.read_own(at, bytes);
            for (index, (theirs, block)) in part.iter().zip(bytes.chunks_exact_mut(BLOCK)).enumerate() {
                let read = match whole {
                    Ok(()) => Ok(()),
                    // One of these blocks is damaged; find out which.
                    Err(DeviceError::Corrupt { .. }) => self.read_own(at + index as u64, block),
                    Err(error) => return Err(error),
                };
                let differs = read.is_err() || digest(block) != *theirs;
                // A damaged block whose sectors are partly in stages counts as different, or the two would be
                // merged.
                differing.push(differs || self.look_at(at + index as u64)?.is_some());
            }
        }
        Ok(differing)
    }
}
