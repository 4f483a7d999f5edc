//! Reading: sectors from stages cover the image's, and a block of the image is used only if it matches its
//! checksum.

use netram_proto::port::RecordLog;

use crate::device::{BLOCK_BYTES, SectorSpan};
use crate::disk::Disk;
use crate::error::DeviceError;
use crate::fetch::BlockFetch;
use crate::image::{SUM_HOLE, SparseFile, matches, sum_at};
use crate::limit::{EXTENT_BLOCKS, READ_BLOCKS};
use crate::stage::{BLOCK, FULL, mask_of};
use crate::stage_queue::BlockOverlay;
use crate::stats::add;
use crate::sync::lock;

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// See [`crate::BlockDevice::read`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`], as for every request.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        SectorSpan::check_request(offset, into.len(), self.bytes())?;
        add(&self.counters.reads, 1);
        add(&self.counters.read_bytes, into.len() as u64);
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let (block, within) = (at / BLOCK_BYTES, (at % BLOCK_BYTES) as usize);
            let rest = &mut into[done..];
            if within == 0 && rest.len() >= BLOCK {
                let count = (rest.len() / BLOCK).min(READ_BLOCKS);
                self.read_blocks(block, &mut rest[..count * BLOCK], FULL, true)?;
                done += count * BLOCK;
            } else {
                // For a part of a block the whole is read, because only the whole can be checked.
                let count = (BLOCK - within).min(rest.len());
                let mut whole = [0; BLOCK];
                self.read_blocks(block, &mut whole, mask_of(within, count), true)?;
                rest[..count].copy_from_slice(&whole[within..within + count]);
                done += count;
            }
        }
        Ok(())
    }

    /// Reads whole blocks, at most [`READ_BLOCKS`], of which the sectors in `needed` are wanted. With
    /// `fetches`, blocks that the image lost come from the other copy.
    pub(crate) fn read_blocks(
        &self,
        first: u64,
        into: &mut [u8],
        needed: u8,
        fetches: bool,
    ) -> Result<(), DeviceError> {
        let mut overlays: [BlockOverlay; READ_BLOCKS] = [const { BlockOverlay::NOTHING }; READ_BLOCKS];
        let count = into.len() / BLOCK;
        {
            let stages = lock(&self.stages);
            for (index, overlay) in overlays[..count].iter_mut().enumerate() {
                *overlay = stages.overlay(first + index as u64, needed);
            }
        }
        let overlays = &overlays[..count];
        let suffices = |overlay: &BlockOverlay| overlay.mask & needed == needed;
        let mut sums = [0; READ_BLOCKS * 4];
        let below = !overlays.iter().all(suffices);
        if below {
            let sums = &mut sums[..count * 4];
            let read = self.image.read_with_sums(first, sums, into);
            read.map_err(DeviceError::Io)?;
        }
        for (index, (block, overlay)) in into.chunks_exact_mut(BLOCK).zip(overlays).enumerate() {
            let number = first + index as u64;
            if suffices(overlay) || matches(number, block, sum_at(&sums, index)) {
                overlay.cover(block);
            } else {
                self.read_again(number, block, needed, fetches)?;
            }
        }
        Ok(())
    }

    /// Reads a block again that did not match its checksum: it was just being written, or it is damaged,
    /// unreadable or missing.
    fn read_again(
        &self,
        number: u64,
        block: &mut [u8],
        needed: u8,
        fetches: bool,
    ) -> Result<(), DeviceError> {
        let (overlay, at_least, stored) = {
            let _still = lock(&self.writing);
            let overlay = lock(&self.stages).overlay(number, needed);
            let mut sums = [0; 4];
            if overlay.mask & needed != needed {
                let read = self.image.read_with_sums(number, &mut sums, block);
                read.map_err(DeviceError::Io)?;
            }
            let stored = sum_at(&sums, 0);
            if overlay.mask & needed == needed || matches(number, block, stored) {
                overlay.cover(block);
                return Ok(());
            }
            // Records that the stages did not show had been applied before the look.
            (overlay, self.applied(), stored)
        };
        if fetches {
            self.read_copy(number, block, at_least, stored)?;
            overlay.cover(block);
            return Ok(());
        }
        Err(DeviceError::Corrupt { block: number })
    }

    /// See [`crate::BlockDevice::extents`].
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the range is invalid or the image cannot be read.
    pub fn extents(
        &self,
        offset: u64,
        length: u64,
        each: &mut dyn FnMut(u64, bool) -> bool,
    ) -> Result<(), DeviceError> {
        let span = SectorSpan::check(offset, length, self.bytes())?;
        let behind = span.end().div_ceil(BLOCK_BYTES);
        let mut first = span.offset() / BLOCK_BYTES;
        // The current run: where it began, and whether it is a hole.
        let mut run: Option<(u64, bool)> = None;
        while first < behind && span.length() > 0 {
            let count = (behind - first).min(EXTENT_BLOCKS as u64) as usize;
            for (index, hole) in self.holes(first, count)?.into_iter().enumerate() {
                let at = ((first + index as u64) * BLOCK_BYTES).max(span.offset());
                match run {
                    Some((_, before)) if before == hole => (),
                    Some((begin, before)) => {
                        if !each(at - begin, before) {
                            return Ok(());
                        }
                        run = Some((at, hole));
                    }
                    None => run = Some((at, hole)),
                }
            }
            first += count as u64;
        }
        if let Some((begin, hole)) = run {
            each(span.end() - begin, hole);
        }
        Ok(())
    }

    /// Whether each of `count` blocks from `first` is a hole. A checksum alone is no proof: a client does not
    /// read a hole, so a lost checksum would turn data into zeros.
    fn holes(&self, first: u64, count: usize) -> Result<Vec<bool>, DeviceError> {
        let mut known = vec![None; count];
        lock(&self.stages).mark_holes(first, &mut known);
        let mut sums = vec![0; count * 4];
        self.image.read_sums(first, &mut sums).map_err(DeviceError::Io)?;
        let mut holes = Vec::with_capacity(count);
        let maybe = |index: usize| known[index].is_none() && sum_at(&sums, index) == SUM_HOLE;
        while holes.len() < count {
            let index = holes.len();
            if !maybe(index) {
                holes.push(known[index].unwrap_or(false));
                continue;
            }
            let behind = (index..count).find(|at| !maybe(*at)).unwrap_or(count);
            self.look_for_holes(first + index as u64, first + behind as u64, &mut holes)?;
            assert_eq!(holes.len(), behind);
        }
        Ok(holes)
    }

    /// Appends to `holes`, for each block from `first` up to `behind`, whether it is a hole; no stage and no
    /// checksum knows of them. A hole of the file costs one system call. Other blocks are read, and are holes
    /// only if all zeros.
    fn look_for_holes(&self, mut first: u64, behind: u64, holes: &mut Vec<bool>) -> Result<(), DeviceError> {
        let (mut blocks, mut sums) = (Vec::new(), [0; READ_BLOCKS * 4]);
        while first < behind {
            let data = self.image.next_data(first, behind).map_err(DeviceError::Io)?;
            holes.extend((first..data).map(|_| true));
            let count = (behind - data).min(READ_BLOCKS as u64);
            blocks.resize(count as usize * BLOCK, 0);
            let sums = &mut sums[..count as usize * 4];
            let read = self.image.read_with_sums(data, sums, &mut blocks);
            read.map_err(DeviceError::Io)?;
            let blocks = blocks.chunks_exact(BLOCK).enumerate();
            holes.extend(blocks.map(|(index, block)| sum_at(sums, index) == SUM_HOLE && block == [0; BLOCK]));
            first = data + count;
        }
        Ok(())
    }
}
