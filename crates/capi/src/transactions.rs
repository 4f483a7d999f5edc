//! Open transactions, by the handle that a `rvm_tid_t` carries.
//!
//! A handle is a place in a table and the number of times the place was used, so that a stale copy of a record is
//! refused and never reaches another's transaction. Slots are never freed or moved: finding one takes no lock but its
//! own.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use netram_home::Transaction;
use netram_rvm::RangeError;

use crate::code::Code;
use crate::failure::Failure;
use crate::lock;
use crate::record::Timeval;
use crate::regions::{Mapped, Regions};

/// What `rvm_tid_t.tid` holds: generation above, place + 1 below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(NonZeroU64);

/// Slots of the first block; each further block has twice as many as the one before.
const FIRST_BLOCK: u32 = 64;
/// Blocks that together have a place for every 32-bit number.
const BLOCKS: usize = 26;

/// An open transaction and what the C interface keeps with it.
pub(crate) struct Open {
    pub(crate) transaction: Transaction,
    /// The flags in force when it began.
    pub(crate) flags: u64,
    pub(crate) uname: Timeval,
    /// The region touched last. It has a range of this transaction, so it cannot be unmapped meanwhile.
    recent: Option<Arc<Mapped>>,
    /// Addresses of the regions with ranges of this transaction.
    touched: Vec<usize>,
}

/// One open transaction, as a query lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) handle: Handle,
    pub(crate) uname: Timeval,
}

#[derive(Default)]
struct Slot(Mutex<Place>);

#[derive(Default)]
struct Place {
    generation: u32,
    open: Option<Open>,
}

/// Every open transaction.
pub(crate) struct Transactions {
    blocks: [OnceLock<Box<[Slot]>>; BLOCKS],
    /// Places that were used and are free.
    free: Mutex<Vec<u32>>,
    /// Places ever used: all below.
    used: AtomicU32,
    open: AtomicUsize,
}

/// Whether a transaction goes on after an attempt to end it.
pub(crate) enum Ending {
    Ended,
    StaysOpen,
}

impl Handle {
    fn new(place: u32, generation: u32) -> Handle {
        let bits = u64::from(generation) << 32 | (u64::from(place) + 1);
        Handle(NonZeroU64::new(bits).expect("the lower half is not zero"))
    }

    /// The handle as the pointer that C keeps.
    pub(crate) fn to_address(self) -> usize {
        self.0.get() as usize
    }

    /// A handle from what C kept, if it can be one.
    pub(crate) fn from_address(address: usize) -> Option<Handle> {
        let bits = NonZeroU64::new(address as u64)?;
        (bits.get() as u32 != 0).then_some(Handle(bits))
    }

    fn place(self) -> u32 {
        self.0.get() as u32 - 1
    }

    fn generation(self) -> u32 {
        (self.0.get() >> 32) as u32
    }
}

impl Open {
    pub(crate) fn new(transaction: Transaction, flags: u64, uname: Timeval) -> Open {
        Open {
            transaction,
            flags,
            uname,
            recent: None,
            touched: Vec::new(),
        }
    }

    /// Notes that the transaction has ranges in the region that begins there.
    pub(crate) fn touch(&mut self, region: usize) {
        if !self.touched.contains(&region) {
            self.touched.push(region);
        }
    }

    /// Declares that these bytes will change.
    #[inline]
    pub(crate) fn set_range(
        &mut self,
        regions: &Regions,
        address: usize,
        length: usize,
    ) -> Result<(), Failure> {
        if length == 0 {
            return self.empty_range(regions, address);
        }
        if let Some(mapped) = &self.recent
            && let Some(offset) = mapped.offset(address, length)
        {
            let declared = self.transaction.set_range(&mapped.region, offset, length);
            return declared.map_err(|error| explain(error, address));
        }
        self.set_range_elsewhere(regions, address, length)
    }

    fn set_range_elsewhere(
        &mut self,
        regions: &Regions,
        address: usize,
        length: usize,
    ) -> Result<(), Failure> {
        let mapped = regions
            .find(address, length)
            .ok_or_else(|| not_mapped(address, length))?;
        let offset = address - mapped.start;
        let declared = self.transaction.set_range(&mapped.region, offset, length);
        declared.map_err(|error| explain(error, address))?;
        self.touch(mapped.start);
        self.recent = Some(mapped);
        Ok(())
    }

    /// Nothing will change. Where optimisations are off the original looks at the address all the same.
    fn empty_range(&self, regions: &Regions, address: usize) -> Result<(), Failure> {
        match self.flags & crate::library::ALL_OPTIMIZATIONS == 0 && regions.find(address, 0).is_none() {
            true => Err(not_mapped(address, 0)),
            false => Ok(()),
        }
    }
}

fn not_mapped(address: usize, length: usize) -> Failure {
    Failure::new(
        Code::NotMapped,
        format!(
            "the {length} bytes at {address:#x} are not all in one mapped region; map it, or declare one range a region"
        ),
    )
}

fn explain(error: RangeError, address: usize) -> Failure {
    let failure = Failure::from(error);
    let text = format!("the range at {address:#x}: {}", failure.text);
    Failure { text, ..failure }
}

impl Transactions {
    pub(crate) const fn new() -> Transactions {
        Transactions {
            blocks: [const { OnceLock::new() }; BLOCKS],
            free: Mutex::new(Vec::new()),
            used: AtomicU32::new(0),
            open: AtomicUsize::new(0),
        }
    }

    /// Transactions that are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Takes in a transaction that has begun.
    pub(crate) fn insert(&self, open: Open) -> Handle {
        self.open.fetch_add(1, Ordering::SeqCst);
        let recycled = lock(&self.free).pop();
        let place = recycled.unwrap_or_else(|| self.used.fetch_add(1, Ordering::AcqRel));
        let mut slot = lock(&self.slot(place).0);
        slot.generation = slot.generation.wrapping_add(1);
        slot.open = Some(open);
        Handle::new(place, slot.generation)
    }

    /// Does something with an open transaction. One thread at a time has it.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut Open) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        let mut slot = lock(&self.find(handle).ok_or_else(ended)?.0);
        let current = slot.generation == handle.generation();
        match &mut slot.open {
            Some(open) if current => act(open),
            _ => Err(ended()),
        }
    }

    /// Does what may end a transaction, and gives its place back if it did.
    pub(crate) fn end<R>(
        &self,
        handle: Handle,
        act: impl FnOnce(&mut Open) -> (R, Ending),
    ) -> Result<(R, Ending), Failure> {
        let mut slot = lock(&self.find(handle).ok_or_else(ended)?.0);
        let current = slot.generation == handle.generation();
        let open = slot.open.as_mut().filter(|_| current);
        let (result, ending) = act(open.ok_or_else(ended)?);
        if let Ending::StaysOpen = ending {
            return Ok((result, ending));
        }
        // Dropping it aborts what was not committed, and lets go of its regions.
        slot.open = None;
        drop(slot);
        lock(&self.free).push(handle.place());
        self.open.fetch_sub(1, Ordering::SeqCst);
        Ok((result, ending))
    }

    /// The open transactions; with `region`, those that have ranges in the region at that address.
    pub(crate) fn list(&self, region: Option<usize>) -> Vec<Listed> {
        let mut listed = Vec::new();
        for place in 0..self.used.load(Ordering::Acquire) {
            let slot = lock(&self.slot(place).0);
            let Some(open) = &slot.open else { continue };
            if region.is_none_or(|start| open.touched.contains(&start)) {
                listed.push(Listed {
                    handle: Handle::new(place, slot.generation),
                    uname: open.uname,
                });
            }
        }
        listed
    }

    fn find(&self, handle: Handle) -> Option<&Slot> {
        let (block, within) = split(handle.place());
        self.blocks.get(block)?.get()?.get(within)
    }

    /// The slot of a place, made if it is the first of its block.
    fn slot(&self, place: u32) -> &Slot {
        let (block, within) = split(place);
        let slots = self.blocks[block].get_or_init(|| {
            let count = (FIRST_BLOCK as usize) << block;
            std::iter::repeat_with(Slot::default).take(count).collect()
        });
        &slots[within]
    }
}

/// Which block a place is in, and where in it.
fn split(place: u32) -> (usize, usize) {
    let shifted = u64::from(place) + u64::from(FIRST_BLOCK);
    let block = shifted.ilog2() - FIRST_BLOCK.ilog2();
    let first = u64::from(FIRST_BLOCK) << block;
    (block as usize, (shifted - first) as usize)
}

fn ended() -> Failure {
    Failure::new(
        Code::Transaction,
        "the transaction was not begun, or has ended; begin it with rvm_begin_transaction",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_fill_blocks_without_gaps() {
        assert_eq!(split(0), (0, 0));
        assert_eq!(split(63), (0, 63));
        assert_eq!(split(64), (1, 0));
        assert_eq!(split(191), (1, 127));
        assert_eq!(split(192), (2, 0));
        assert_eq!(split(u32::MAX - FIRST_BLOCK).0, BLOCKS - 1);
    }

    #[test]
    fn what_was_never_a_handle_is_refused() {
        let table = Transactions::new();
        assert_eq!(Handle::from_address(0), None);
        assert_eq!(Handle::from_address(1 << 32), None);
        for address in [1, 0xdead_beef, usize::MAX, 1 << 33 | 5] {
            let handle = Handle::from_address(address).expect("its lower half is not zero");
            let met = table.with(handle, |_| Ok(()));
            assert_eq!(met.map_err(|failure| failure.code), Err(Code::Transaction));
        }
    }
}
