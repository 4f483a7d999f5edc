//! Finding the block at an address from the heap's bytes alone.

use crate::class::RUNS;
use crate::error::{BlockError, HeapDamage};
use crate::layout::{
    DESCRIPTOR_BYTES, HeapGeometry, PageDescriptor, SLOT_FREE, SLOT_TAKEN, descriptor_at, page_at, state_at,
};
use crate::limit::{ALIGNMENT, PAGE_BYTES, RUN_PAGES_MAX};

/// Bytes of a heap, or of a copy, that can be copied out. They are not borrowed: through the C interface
/// programs store to their blocks while other threads read the heap.
pub(crate) trait HeapBytes {
    /// Copies bytes from `at` to `into`. The caller has checked that the heap reaches that far.
    fn copy(&self, at: u64, into: &mut [u8]);
}

impl HeapBytes for [u8] {
    fn copy(&self, at: u64, into: &mut [u8]) {
        let at = at as usize;
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeapBlock {
    /// Offset in the heap.
    pub(crate) at: u64,
    /// Bytes that the block can hold.
    pub(crate) bytes: u64,
    pub(crate) kind: BlockKind,
}

/// Kind of a block: a slot of a run, or whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// A slot of the run that begins at `page`.
    Slot { page: u32, class: u8, slot: u32 },
    /// Whole pages.
    Extent { page: u32, pages: u32 },
}

pub(crate) fn descriptor<B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    page: u32,
) -> Result<PageDescriptor, HeapDamage> {
    let mut raw = [0; DESCRIPTOR_BYTES];
    bytes.copy(descriptor_at(page), &mut raw);
    PageDescriptor::decode(raw, page, geometry)
}

/// The allocated block that a pointer refers to.
pub(crate) fn locate<B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    pointer: u64,
) -> Result<HeapBlock, BlockError> {
    if pointer == 0 {
        return Err(BlockError::Null);
    }
    let blocks = page_at(geometry.first)..geometry.bytes();
    let at = pointer
        .checked_sub(geometry.origin)
        .filter(|at| blocks.contains(at));
    let at = at.ok_or(BlockError::Outside { at: pointer })?;
    let none = BlockError::NotABlock { at: pointer };
    if !at.is_multiple_of(ALIGNMENT as u64) {
        return Err(none);
    }
    // Fits: the heap's pages are counted in 32 bits.
    let page = (at / PAGE_BYTES as u64) as u32;
    let (first, owner) = owner(bytes, geometry, page)?;
    match owner {
        PageDescriptor::Extent { pages } if page_at(first) == at => Ok(HeapBlock {
            at,
            bytes: page_at(pages),
            kind: BlockKind::Extent { page, pages },
        }),
        PageDescriptor::Run { class } => {
            let run = RUNS[usize::from(class)];
            let slot = run.slot_of(at - page_at(first)).ok_or(none)?;
            let mut state = [0];
            bytes.copy(page_at(first) + state_at(slot), &mut state);
            match state[0] {
                SLOT_TAKEN => Ok(HeapBlock {
                    at,
                    bytes: run.bytes.into(),
                    kind: BlockKind::Slot {
                        page: first,
                        class,
                        slot,
                    },
                }),
                SLOT_FREE => Err(BlockError::Free { at: pointer }),
                _ => Err(HeapDamage::Slot { page: first, slot }.into()),
            }
        }
        PageDescriptor::Extent { .. } | PageDescriptor::Empty => Err(none),
    }
}

/// The extent that begins at `page`, or the run that covers it, with its first page. Only runs are searched
/// for further back: an address inside an extent is never a block.
fn owner<B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    page: u32,
) -> Result<(u32, PageDescriptor), BlockError> {
    let lowest = page.saturating_sub(RUN_PAGES_MAX as u32 - 1).max(geometry.first);
    for first in (lowest..=page).rev() {
        let found = descriptor(bytes, geometry, first)?;
        if found != PageDescriptor::Empty {
            let covers = first == page
                || (matches!(found, PageDescriptor::Run { .. }) && page - first < found.pages());
            return Ok(if covers {
                (first, found)
            } else {
                (page, PageDescriptor::Empty)
            });
        }
    }
    Ok((page, PageDescriptor::Empty))
}
