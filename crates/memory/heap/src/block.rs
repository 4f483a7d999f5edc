//! Which block stands at an address, judged from the heap's bytes alone.

use crate::class::RUNS;
use crate::error::{BlockError, Damage};
use crate::layout::{
    DESCRIPTOR_BYTES, Descriptor, Geometry, SLOT_FREE, SLOT_TAKEN, descriptor_at, page_at, state_at,
};
use crate::limit::{ALIGNMENT, PAGE_BYTES, RUN_PAGES_MAX};

/// Bytes that can be copied out: a heap's ground, or a copy of it. Copying, not borrowing: through the C
/// interface programs store to their blocks while other threads look at the heap.
pub(crate) trait Bytes {
    /// Fills `into` from `at`. The caller has checked that the heap reaches that far.
    fn copy(&self, at: u64, into: &mut [u8]);
}

impl Bytes for [u8] {
    fn copy(&self, at: u64, into: &mut [u8]) {
        let at = at as usize;
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Where in the heap it begins.
    pub(crate) at: u64,
    /// Bytes that it can hold.
    pub(crate) bytes: u64,
    pub(crate) place: Place,
}

/// What a block is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A slot of the run that begins at `page`.
    Slot { page: u32, class: u8, slot: u32 },
    /// Whole pages.
    Extent { page: u32, pages: u32 },
}

pub(crate) fn descriptor<B: Bytes + ?Sized>(
    bytes: &B,
    geometry: Geometry,
    page: u32,
) -> Result<Descriptor, Damage> {
    let mut raw = [0; DESCRIPTOR_BYTES];
    bytes.copy(descriptor_at(page), &mut raw);
    Descriptor::decode(raw, page, geometry)
}

/// The taken block that a pointer names.
pub(crate) fn locate<B: Bytes + ?Sized>(
    bytes: &B,
    geometry: Geometry,
    pointer: u64,
) -> Result<Block, BlockError> {
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
        Descriptor::Extent { pages } if page_at(first) == at => Ok(Block {
            at,
            bytes: page_at(pages),
            place: Place::Extent { page, pages },
        }),
        Descriptor::Run { class } => {
            let run = RUNS[usize::from(class)];
            let slot = run.slot_of(at - page_at(first)).ok_or(none)?;
            let mut state = [0];
            bytes.copy(page_at(first) + state_at(slot), &mut state);
            match state[0] {
                SLOT_TAKEN => Ok(Block {
                    at,
                    bytes: run.bytes.into(),
                    place: Place::Slot {
                        page: first,
                        class,
                        slot,
                    },
                }),
                SLOT_FREE => Err(BlockError::Free { at: pointer }),
                _ => Err(Damage::Slot { page: first, slot }.into()),
            }
        }
        Descriptor::Extent { .. } | Descriptor::Empty => Err(none),
    }
}

/// The extent that begins at `page`, or the run that covers it, and where it begins. Only runs are looked for
/// further back: nobody needs the extent around an address inside it.
fn owner<B: Bytes + ?Sized>(
    bytes: &B,
    geometry: Geometry,
    page: u32,
) -> Result<(u32, Descriptor), BlockError> {
    let lowest = page.saturating_sub(RUN_PAGES_MAX as u32 - 1).max(geometry.first);
    for first in (lowest..=page).rev() {
        let found = descriptor(bytes, geometry, first)?;
        if found != Descriptor::Empty {
            let covers =
                first == page || (matches!(found, Descriptor::Run { .. }) && page - first < found.pages());
            return Ok(if covers {
                (first, found)
            } else {
                (page, Descriptor::Empty)
            });
        }
    }
    Ok((page, Descriptor::Empty))
}
