//! Transactions in regions whose stores are found by page.

use netram_proto::port::RecordLog;

use super::{Route, Transaction, TransactionBuffers};
use crate::capture::{AllowedRanges, PAGE, PageDecision};
use crate::error::{RangeError, RvmCommitError};
use crate::memory::RegionMemory;
use crate::options::RestoreMode;
use crate::region::Region;
use crate::storage::SegmentStorage;

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Gives the stores to the region to this transaction, from the last commit there until the transaction
    /// ends, where [`Region::set_capture`] has them found by page. Elsewhere it does nothing. `set_range` and
    /// similar calls do the same.
    ///
    /// # Errors
    ///
    /// [`RangeError::Captured`] if another transaction has the region; [`RangeError::Ended`],
    /// [`RangeError::ForeignRegion`] or [`RangeError::TooMany`] if the transaction cannot use it.
    pub fn capture(&mut self, region: &Region) -> Result<(), RangeError> {
        match self.open {
            true => self.enter(region).map(drop),
            false => Err(RangeError::Ended),
        }
    }

    /// Limits the bytes of the region that this transaction may change to these ranges, in order and without
    /// overlaps. They replace earlier ones. A commit that finds other bytes changed fails with
    /// `RvmCommitError::Outside`, and whole pages are logged only as far as they may change.
    ///
    /// This applies to regions whose stores are found by page. Elsewhere it does nothing: declared ranges are
    /// not checked.
    ///
    /// # Errors
    ///
    /// As [`Transaction::capture`]; also [`RangeError::OutOfRegion`] if a range does not lie in the region.
    pub fn confine(&mut self, region: &Region, within: &[std::ops::Range<usize>]) -> Result<(), RangeError> {
        self.capture(region)?;
        let index = self.recent.index;
        let mut captures = self.buffers.captures.iter_mut();
        if let Some((_, captured)) = captures.find(|(captured, _)| *captured == index) {
            captured.confine(AllowedRanges::new(within));
        }
        Ok(())
    }

    /// How ranges declared in a region of this transaction are handled.
    #[cold]
    pub(super) fn route(&self, index: u32) -> Route {
        let TransactionBuffers {
            captures, verifiers, ..
        } = &self.buffers;
        if let Some((_, captured)) = captures.iter().find(|(captured, _)| *captured == index) {
            return match captured.is_adaptive() {
                true => Route::Adaptive,
                false => Route::Captured,
            };
        }
        match verifiers.iter().any(|(verified, ..)| *verified == index) {
            true => Route::Verified,
            false => Route::Recorded,
        }
    }

    /// Records those parts of a declared range whose pages are neither compared nor logged whole.
    pub(super) fn declare_by_page(
        &mut self,
        memory: &RegionMemory,
        index: u32,
        offset: usize,
        length: usize,
    ) {
        let end = offset + length;
        let mut at = offset;
        while at < end {
            let page = at / PAGE;
            let part_end = end.min((page + 1) * PAGE);
            let mut captures = self.buffers.captures.iter_mut();
            let found = captures.find(|(captured, _)| *captured == index);
            let (_, captured) = found.expect("the region is captured");
            if captured.touch(memory, page) == PageDecision::Record {
                self.record(memory, index, at, part_end - at);
            }
            at = part_end;
        }
    }

    #[cold]
    pub(super) fn tell_verifier(&self, index: u32, offset: usize, length: usize) {
        let mut verifiers = self.buffers.verifiers.iter();
        let found = verifiers.find(|(verified, ..)| *verified == index);
        let (_, number, verifier) = found.expect("the region is verified");
        verifier.declared(*number, offset, length);
    }

    /// Looks for undeclared stores.
    pub(super) fn verify(&self) -> Result<(), RvmCommitError> {
        let TransactionBuffers {
            regions, verifiers, ..
        } = &self.buffers;
        for (index, _, verifier) in verifiers {
            let mapping = &regions.list[*index as usize];
            let checked = verifier.check(&mapping.read());
            let found = checked.map_err(|cause| RvmCommitError::Capture { cause })?;
            if let Some((first, count)) = found.filter(|_| verifier.refuses) {
                let first = mapping.undeclared(first);
                return Err(RvmCommitError::Undeclared {
                    segment: first.segment,
                    offset: first.offset,
                    length: first.length,
                    address: first.address,
                    count,
                });
            }
        }
        Ok(())
    }

    /// Adds the stores found in regions that are captured by page to the ranges.
    pub(super) fn find_stores(&mut self) -> Result<(), RvmCommitError> {
        let TransactionBuffers {
            regions,
            ranges,
            captures,
            ..
        } = &mut self.buffers;
        ranges.clear_captured();
        for (index, captured) in captures.iter_mut() {
            let mapping = &regions.list[*index as usize];
            let found = captured.find(&mapping.read(), *index, ranges);
            let strays = found.map_err(|cause| RvmCommitError::Capture { cause })?;
            if let Some((first, count)) = strays {
                ranges.clear_captured();
                return Err(RvmCommitError::Outside {
                    first: mapping.undeclared(first),
                    count,
                });
            }
        }
        Ok(())
    }

    /// Marks the found stores as logged.
    pub(super) fn settle_stores(&mut self) {
        let TransactionBuffers {
            regions, captures, ..
        } = &mut self.buffers;
        for (index, captured) in captures.iter_mut() {
            captured.logged(&regions.list[*index as usize].read());
        }
    }

    /// Undoes the stores in these regions, or forgets them in [`RestoreMode::NoRestore`].
    pub(super) fn abort_stores(&mut self) {
        let TransactionBuffers {
            regions, captures, ..
        } = &mut self.buffers;
        for (index, captured) in captures.iter_mut() {
            let mapping = &regions.list[*index as usize];
            let undone = match self.mode {
                RestoreMode::Restore => captured.restore(&mut mapping.write()),
                RestoreMode::NoRestore => captured.forget(&mapping.read()),
            };
            // The system can no longer report which pages were stored to, though it did before, so memory
            // cannot be restored to the committed state.
            undone.expect("a page table that was scanned before");
        }
    }
}
