//! Freeing: the block's own state byte or descriptor changes. The block is reused only after the transaction
//! has committed.

use super::{Heap, Inner, OwnerError, State, Step};
use crate::block::{BlockKind, HeapBlock, locate};
use crate::error::{BlockError, FreeError, HeapDamage};
use crate::layout::{HeapGeometry, PageDescriptor, SLOT_FREE, page_at, state_at};
use crate::limit::{PAGE_BYTES, TRANSACTIONS_MAX};
use crate::pointer::Ptr;
use crate::transact::Transact;

impl From<OwnerError> for FreeError {
    fn from(reason: OwnerError) -> FreeError {
        match reason {
            OwnerError::Range(error) => FreeError::Range(error),
            OwnerError::Damaged(damage) => damage.into(),
            OwnerError::TooMany => FreeError::Transactions {
                max: TRANSACTIONS_MAX,
            },
        }
    }
}

impl From<HeapDamage> for FreeError {
    fn from(damage: HeapDamage) -> FreeError {
        FreeError::Block(BlockError::Damaged(damage))
    }
}

impl Heap {
    /// Frees a block. Its bytes stay unchanged until it is reused, which can only be after the transaction
    /// has committed.
    ///
    /// # Errors
    ///
    /// [`FreeError::Block`] if the pointer is not an allocated block; [`FreeError::Busy`] if another open
    /// transaction uses it.
    pub fn free<T, X: Transact>(&self, transaction: &mut X, block: Ptr<T>) -> Result<(), FreeError> {
        let mut state = self.inner.lock();
        let owner = self.owner(&mut state, transaction)?;
        let block = self.inner.admit(&mut state, owner, block.offset())?;
        self.inner.release(&mut state, transaction, owner, block)?;
        state.counts.frees += 1;
        Ok(())
    }

    /// Capacity of a block in bytes: at least the requested size.
    ///
    /// # Errors
    ///
    /// [`BlockError`] if the pointer is not an allocated block.
    pub fn block_bytes<T>(&self, block: Ptr<T>) -> Result<u64, BlockError> {
        let state = self.inner.lock();
        let found = locate(&self.inner.slice, self.inner.geometry, block.offset());
        found
            .map(|block| block.bytes)
            .map_err(|error| state.explain(self.inner.geometry, error))
    }
}

impl Inner {
    /// The block at `at`, if the owner may free or resize it.
    pub(super) fn admit(&self, state: &mut State, owner: u16, at: u64) -> Result<HeapBlock, FreeError> {
        let block =
            locate(&self.slice, self.geometry, at).map_err(|error| state.explain(self.geometry, error))?;
        let other = match block.kind {
            BlockKind::Slot { page, class, slot } => {
                // The table must agree with the lists that were read from it.
                let read = state
                    .lists
                    .runs
                    .is_read(page, class)
                    .ok_or(HeapDamage::Descriptor { page })?;
                if !read {
                    self.read_run(state, page, class)?;
                }
                // Freeing it again would give it two owners.
                if state.lists.runs.is_available(page, slot) {
                    return Err(HeapDamage::Slot { page, slot }.into());
                }
                state.lists.runs.owner(page, slot)
            }
            BlockKind::Extent { page, .. } if state.lists.free.has(page) => {
                return Err(HeapDamage::Descriptor { page }.into());
            }
            BlockKind::Extent { page, .. } => state.extents.get(&page).copied(),
        };
        match other {
            Some(other) if other != owner => Err(FreeError::Busy { at }),
            _ => Ok(block),
        }
    }

    /// Frees an admitted block.
    pub(super) fn release<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        block: HeapBlock,
    ) -> Result<(), FreeError> {
        match block.kind {
            BlockKind::Slot { page, slot, .. } => {
                let at = page_at(page) + state_at(slot);
                self.slice.write(transaction, at, &[SLOT_FREE])?;
                state.lists.runs.own(page, slot, owner);
                state.note(owner, Step::FreedSlot { page, slot });
            }
            BlockKind::Extent { page, pages } => {
                self.describe(transaction, page, PageDescriptor::Empty)?;
                state.extents.insert(page, owner);
                state.note(owner, Step::FreedPages { page, pages });
            }
        }
        Ok(())
    }
}

impl State {
    /// Distinguishes a free page from one inside a block, which look the same in the heap's bytes.
    pub(super) fn explain(&self, geometry: HeapGeometry, error: BlockError) -> BlockError {
        let BlockError::NotABlock { at } = error else {
            return error;
        };
        let inside = at - geometry.origin;
        let page = (inside / PAGE_BYTES as u64) as u32;
        let begins = inside.is_multiple_of(PAGE_BYTES as u64);
        match begins && (self.lists.free.has(page) || self.extents.contains_key(&page)) {
            true => BlockError::Free { at },
            false => error,
        }
    }
}
