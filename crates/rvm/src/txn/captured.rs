//! Transactions in regions whose stores are found by page.

use netram_proto::port::Log;

use super::{Buffers, Transaction};
use crate::error::{CommitError, RangeError};
use crate::options::Mode;
use crate::region::Region;
use crate::storage::Storage;

impl<L: Log, S: Storage> Transaction<L, S> {
    /// Makes the stores to the region this transaction's, from the last commit there until it ends, where
    /// [`Region::set_capture`] has them found by page; elsewhere it does nothing. `set_range` and the like do
    /// the same.
    pub fn capture(&mut self, region: &Region) -> Result<(), RangeError> {
        self.admit(region, 0, 1).map(drop)
    }

    /// Adds to the ranges what was stored in the regions that are captured by page.
    pub(super) fn find_stores(&mut self) -> Result<(), CommitError> {
        let Buffers {
            regions,
            ranges,
            captures,
            ..
        } = &mut self.buffers;
        ranges.clear_found();
        for (place, captured) in captures.iter_mut() {
            let memory = regions.list[*place as usize].read();
            let found = captured.find(&memory, *place, ranges);
            found.map_err(|cause| CommitError::Capture { cause })?;
        }
        Ok(())
    }

    /// What was found is logged.
    pub(super) fn settle_stores(&mut self) {
        let Buffers {
            regions, captures, ..
        } = &mut self.buffers;
        for (place, captured) in captures.iter_mut() {
            captured.logged(&regions.list[*place as usize].read());
        }
    }

    /// Undoes what was stored in those regions, or forgets that it was.
    pub(super) fn abort_stores(&mut self) {
        let Buffers {
            regions, captures, ..
        } = &mut self.buffers;
        for (place, captured) in captures.iter_mut() {
            let mapping = &regions.list[*place as usize];
            let undone = match self.mode {
                Mode::Restore => captured.restore(&mut mapping.write()),
                Mode::NoRestore => captured.forget(&mapping.read()),
            };
            // The system would not say which pages were stored to, though it did before: memory can no longer be
            // told from what was committed.
            undone.expect("a page table that was scanned before");
        }
    }
}
