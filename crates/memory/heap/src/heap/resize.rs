//! Resizing: in place where class or neighbours allow, by moving otherwise.

use netram_rvm::RangeError;

use super::{Heap, Inner, State, Step};
use crate::block::{BlockKind, HeapBlock, HeapBytes, locate};
use crate::class::{SizeChoice, choose};
use crate::error::BlockResizeError;
use crate::layout::PageDescriptor;
use crate::limit::COPY_STEP_BYTES;
use crate::pointer::Ptr;
use crate::transact::Transact;

/// A slot is kept if the new size fills at least this many quarters of it: moving would save less than a log
/// record costs.
const KEEP_QUARTERS: u64 = 3;

impl Heap {
    /// Resizes a block to at least `bytes` bytes and returns its new pointer. Bytes up to the shorter length
    /// keep their values.
    ///
    /// Where possible pages are added or released at the block's end, and nothing is copied. If the block
    /// moves, its bytes are declared at the new place, and so are logged.
    ///
    /// # Errors
    ///
    /// [`BlockResizeError::Free`] if `block` is not an allocated block that the transaction may free;
    /// [`BlockResizeError::Alloc`] if there is no room; [`BlockResizeError::Range`] if the copy cannot be
    /// declared.
    pub fn resize<T, X: Transact>(
        &self,
        transaction: &mut X,
        block: Ptr<T>,
        bytes: usize,
    ) -> Result<Ptr<T>, BlockResizeError> {
        let mut state = self.inner.lock();
        let owner = self
            .owner(&mut state, transaction)
            .map_err(|reason| BlockResizeError::Alloc(reason.into()))?;
        let old = self.inner.admit(&mut state, owner, block.offset())?;
        if self.inner.fit(&mut state, transaction, owner, old, bytes)? {
            state.counts.resized_in_place += 1;
            return Ok(block);
        }
        let at = self.inner.take(&mut state, transaction, owner, bytes)?;
        let moved = self
            .inner
            .copy(transaction, old.at, at, old.bytes.min(bytes as u64));
        let moved = moved.map_err(BlockResizeError::from).and_then(|()| {
            let freed = self.inner.release(&mut state, transaction, owner, old);
            freed.map_err(BlockResizeError::from)
        });
        if let Err(error) = moved {
            let geometry = self.inner.geometry;
            let new = locate(&self.inner.slice, geometry, geometry.pointer(at));
            let new = new.expect("the block was just taken");
            // A transaction that accepts no more ranges cannot free the block either; its abort does.
            let _ = self.inner.release(&mut state, transaction, owner, new);
            return Err(error);
        }
        state.counts.resized_by_moving += 1;
        Ok(Ptr::from_offset(self.inner.geometry.pointer(at)))
    }
}

impl Inner {
    /// Resizes the block in place, if that is possible.
    fn fit<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        block: HeapBlock,
        bytes: usize,
    ) -> Result<bool, RangeError> {
        let (page, from) = match block.kind {
            BlockKind::Slot { class, .. } => {
                let wanted = bytes as u64;
                let fills = wanted <= block.bytes && wanted.saturating_mul(4) >= block.bytes * KEEP_QUARTERS;
                return Ok(fills || choose(bytes) == SizeChoice::Slot(class));
            }
            BlockKind::Extent { page, pages } => (page, pages),
        };
        let to = match choose(bytes) {
            SizeChoice::Extent(Some(to)) if to == from => return Ok(true),
            SizeChoice::Extent(Some(to)) => to,
            _ => return Ok(false),
        };
        if to > from && !state.lists.free.take_at(page + from, to - from) {
            return Ok(false);
        }
        if let Err(error) = self.describe(transaction, page, PageDescriptor::Extent { pages: to }) {
            if to > from {
                state.lists.free.give(page + from, to - from);
            }
            return Err(error);
        }
        state.extents.insert(page, owner);
        state.note(owner, Step::Resized { page, from, to });
        Ok(true)
    }

    /// Copies bytes between blocks, and declares them at the target.
    fn copy<X: Transact>(
        &self,
        transaction: &mut X,
        source: u64,
        target: u64,
        bytes: u64,
    ) -> Result<(), RangeError> {
        let mut buffer = vec![0; (bytes as usize).min(COPY_STEP_BYTES)];
        let mut done = 0;
        while done < bytes {
            let count = buffer.len().min((bytes - done) as usize);
            self.slice.copy(source + done, &mut buffer[..count]);
            self.slice.write(transaction, target + done, &buffer[..count])?;
            done += count as u64;
        }
        Ok(())
    }
}
