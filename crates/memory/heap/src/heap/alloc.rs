//! Allocating: a slot of a run, or pages.
//!
//! Changes beyond a block's own state byte or descriptor, such as carving a run or giving empty runs back,
//! are top actions. They are committed before the user's transaction, and therefore precede it in the log.

use netram_rvm::RangeError;

use super::{Heap, Inner, OwnerError, State, Step};
use crate::block::HeapBytes;
use crate::class::{RUNS, SizeChoice, choose};
use crate::error::{AllocError, HeapDamage};
use crate::layout::{
    DESCRIPTOR_BYTES, PageDescriptor, SLOT_TAKEN, check_run, descriptor_at, encode_run, page_at,
    run_header_bytes, state_at,
};
use crate::limit::{EMPTY_RUNS_KEPT, PAGE_BYTES, RUN_SLOTS_MAX, TRANSACTIONS_MAX, UNREAD_LOOKS};
use crate::pointer::Ptr;
use crate::transact::{TopActionOutcome, Transact};

/// Runs that one transaction gives back at most. Bounds its record.
const GIVEN_BACK_AT_ONCE: usize = 32;
/// Bytes that are zeroed in a new block of a smaller size. The smallest slot has more.
const WORD_BYTES: usize = 8;

/// Which empty runs are kept when pages are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunRetention {
    /// A few while there are free pages, then none.
    Few,
    /// All of the class.
    OfClass(u8),
}

impl From<OwnerError> for AllocError {
    fn from(reason: OwnerError) -> AllocError {
        match reason {
            OwnerError::Range(error) => AllocError::Range(error),
            OwnerError::Damaged(damage) => AllocError::Damaged(damage),
            OwnerError::TooMany => AllocError::Transactions {
                max: TRANSACTIONS_MAX,
            },
        }
    }
}

impl Heap {
    /// Allocates a block of at least `bytes` bytes, at a multiple of 16 of the region; blocks from 3.5 KiB on
    /// often begin at a page. The bytes keep earlier values, but if fewer than eight are requested the first
    /// eight are zeroed.
    ///
    /// # Errors
    ///
    /// [`AllocError::NoRoom`] if no free part of the heap is large enough; the other variants of
    /// [`AllocError`] if the transaction or the log refuses the change, or the heap is damaged.
    pub fn allocate<X: Transact>(&self, transaction: &mut X, bytes: usize) -> Result<Ptr<u8>, AllocError> {
        let at = self.take(transaction, bytes)?;
        Ok(Ptr::from_offset(self.inner.geometry.pointer(at)))
    }

    /// Allocates a block and returns its offset in the heap.
    pub(super) fn take<X: Transact>(&self, transaction: &mut X, bytes: usize) -> Result<u64, AllocError> {
        let mut state = self.inner.lock();
        let owner = self.owner(&mut state, transaction)?;
        let at = self.inner.take(&mut state, transaction, owner, bytes)?;
        state.counts.allocations += 1;
        Ok(at)
    }

    /// Prepares `count` blocks of `bytes` bytes, so that this many allocations find a carved run. Has no
    /// effect for blocks of whole pages, which need no preparation.
    ///
    /// Prepared runs count as empty runs: an allocation of any size that carves a run may give all but
    /// [`EMPTY_RUNS_KEPT`] of them back. So prepare only the blocks that are allocated next.
    ///
    /// # Errors
    ///
    /// As [`Heap::allocate`]. Blocks prepared before the error stay prepared.
    pub fn prepare<X: Transact>(
        &self,
        transaction: &mut X,
        bytes: usize,
        count: usize,
    ) -> Result<(), AllocError> {
        let SizeChoice::Slot(class) = choose(bytes) else {
            return Ok(());
        };
        let mut state = self.inner.lock();
        let owner = self.owner(&mut state, transaction)?;
        while state.lists.runs.available(class) < count as u64 {
            // The empty runs of the class are what the caller prepares, so they are kept.
            self.inner.more_slots(
                &mut state,
                transaction,
                owner,
                class,
                bytes,
                RunRetention::OfClass(class),
            )?;
        }
        Ok(())
    }

    /// Whether a block of `bytes` bytes could be allocated now.
    ///
    /// # Errors
    ///
    /// [`HeapDamage`] if a run read for the answer is damaged.
    pub fn has_room(&self, bytes: usize) -> Result<bool, HeapDamage> {
        let mut state = self.inner.lock();
        self.inner.read_all(&mut state)?;
        Ok(match choose(bytes) {
            SizeChoice::Extent(None) => false,
            SizeChoice::Extent(Some(pages)) => state.pages_within_reach() >= pages,
            SizeChoice::Slot(class) => {
                state.lists.runs.available(class) > 0
                    || state.pages_within_reach() >= RUNS[usize::from(class)].pages
            }
        })
    }
}

impl Inner {
    /// Allocates a block in the transaction and returns its offset.
    pub(super) fn take<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        bytes: usize,
    ) -> Result<u64, AllocError> {
        match choose(bytes) {
            SizeChoice::Slot(class) => self.take_slot(state, transaction, owner, class, bytes),
            SizeChoice::Extent(Some(pages)) => self.take_extent(state, transaction, owner, pages, bytes),
            SizeChoice::Extent(None) => Err(state.no_room(bytes)),
        }
    }

    fn take_slot<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        class: u8,
        asked: usize,
    ) -> Result<u64, AllocError> {
        let (page, slot) = loop {
            if let Some(found) = state.lists.runs.take(class, owner) {
                break found;
            }
            self.more_slots(state, transaction, owner, class, asked, RunRetention::Few)?;
        };
        let block = page_at(page) + RUNS[usize::from(class)].slot_at(slot);
        let cleared = match asked < WORD_BYTES {
            // Programs may read a small block as a whole word; the bytes behind the stored ones are zeros.
            true => self.slice.write(transaction, block, &[0; WORD_BYTES]),
            false => Ok(()),
        };
        let at = page_at(page) + state_at(slot);
        let written = cleared.and_then(|()| self.slice.write(transaction, at, &[SLOT_TAKEN]));
        if let Err(error) = written {
            state.lists.runs.disown(page, slot);
            state.lists.runs.give(page, slot);
            return Err(error.into());
        }
        state.note(owner, Step::TookSlot { page, slot });
        Ok(block)
    }

    fn take_extent<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        pages: u32,
        asked: usize,
    ) -> Result<u64, AllocError> {
        let page = self.take_pages(state, transaction, owner, pages, asked, RunRetention::Few)?;
        if let Err(error) = self.describe(transaction, page, PageDescriptor::Extent { pages }) {
            state.lists.free.give(page, pages);
            return Err(error.into());
        }
        state.extents.insert(page, owner);
        state.note(owner, Step::TookPages { page, pages });
        Ok(page_at(page))
    }

    /// Writes a page's descriptor in a transaction.
    pub(super) fn describe<X: Transact>(
        &self,
        transaction: &mut X,
        page: u32,
        descriptor: PageDescriptor,
    ) -> Result<(), RangeError> {
        let at = descriptor_at(page);
        self.slice.write(transaction, at, &descriptor.encode(page))
    }

    /// Makes slots of a class available, from an unread run or a new one.
    fn more_slots<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        class: u8,
        asked: usize,
        keep: RunRetention,
    ) -> Result<(), AllocError> {
        let before = state.lists.runs.available(class);
        for _ in 0..UNREAD_LOOKS {
            let Some(page) = state.lists.runs.next_unread(class) else {
                break;
            };
            self.read_run(state, page, class)?;
            if state.lists.runs.available(class) > before {
                return Ok(());
            }
        }
        match self.carve(state, transaction, owner, class, asked, keep) {
            // The search for pages has read all runs and found slots of the class.
            Err(AllocError::NoRoom { .. }) if state.lists.runs.available(class) > before => {
                state.counts.refused -= 1;
                Ok(())
            }
            carved => carved,
        }
    }

    /// Reads the states of a run.
    pub(super) fn read_run(&self, state: &mut State, page: u32, class: u8) -> Result<(), HeapDamage> {
        let run = RUNS[usize::from(class)];
        let mut bytes = [0; PAGE_BYTES];
        let bytes = &mut bytes[..run_header_bytes(run)];
        self.slice.copy(page_at(page), bytes);
        check_run(page, class, bytes)?;
        state.lists.runs.read(page, &bytes[state_at(0) as usize..]);
        Ok(())
    }

    /// Reads the states of all runs.
    pub(super) fn read_all(&self, state: &mut State) -> Result<(), HeapDamage> {
        for class in 0..RUNS.len() as u8 {
            while let Some(page) = state.lists.runs.next_unread(class) {
                self.read_run(state, page, class)?;
            }
        }
        Ok(())
    }

    /// Carves a run out of free pages, in a top action: transactions that take a slot of it commit later.
    fn carve<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        class: u8,
        asked: usize,
        keep: RunRetention,
    ) -> Result<(), AllocError> {
        let run = RUNS[usize::from(class)];
        let page = self.take_pages(state, transaction, owner, run.pages, asked, keep)?;
        let mut bytes = [0; RUN_SLOTS_MAX + 16];
        let bytes = &mut bytes[..run_header_bytes(run)];
        encode_run(page, class, bytes);
        let carved = transaction.top_action(|own| {
            self.slice.write(own, page_at(page), bytes)?;
            self.describe(own, page, PageDescriptor::Run { class })
        });
        match carved {
            Ok(TopActionOutcome::Committed) => {}
            Ok(TopActionOutcome::Within) => state.note(owner, Step::Carved { page, class }),
            Err(error) => {
                self.put_descriptor_back(page, PageDescriptor::Empty);
                state.lists.free.give(page, run.pages);
                return Err(error);
            }
        }
        state.lists.runs.add_carved(page, class);
        state.counts.runs_carved += 1;
        Ok(())
    }

    /// Takes free pages. Gives empty runs back first when there are many, and as many as possible before it
    /// fails.
    fn take_pages<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        pages: u32,
        asked: usize,
        keep: RunRetention,
    ) -> Result<u32, AllocError> {
        if keep == RunRetention::Few && state.lists.runs.has_surplus() {
            self.give_back(state, transaction, owner, EMPTY_RUNS_KEPT, keep)?;
        }
        if let Some(page) = state.lists.free.take(pages) {
            return Ok(page);
        }
        self.read_all(state)?;
        self.give_back(state, transaction, owner, 0, keep)?;
        state.lists.free.take(pages).ok_or_else(|| state.no_room(asked))
    }

    /// Turns empty runs back into free pages, all but `count` and those that `keep` selects.
    pub(super) fn give_back<X: Transact>(
        &self,
        state: &mut State,
        transaction: &mut X,
        owner: u16,
        count: usize,
        keep: RunRetention,
    ) -> Result<(), AllocError> {
        loop {
            let surplus = state.lists.runs.surplus(count);
            let surplus = surplus.filter(|(_, class)| keep != RunRetention::OfClass(*class));
            let surplus: Vec<(u32, u8)> = surplus.take(GIVEN_BACK_AT_ONCE).collect();
            if surplus.is_empty() {
                return Ok(());
            }
            let given = transaction.top_action(|own| {
                surplus
                    .iter()
                    .try_for_each(|(page, _)| self.describe(own, *page, PageDescriptor::Empty))
            });
            for (page, class) in surplus {
                if given.is_err() {
                    self.put_descriptor_back(page, PageDescriptor::Run { class });
                    continue;
                }
                state.lists.runs.leave(page);
                state.lists.free.give(page, RUNS[usize::from(class)].pages);
                if given == Ok(TopActionOutcome::Within) {
                    state.note(owner, Step::GaveBack { page, class });
                }
                state.counts.runs_given_back += 1;
            }
            given?;
        }
    }

    /// Restores a descriptor in memory after a change that was not logged.
    pub(super) fn put_descriptor_back(&self, page: u32, descriptor: PageDescriptor) {
        let bytes: [u8; DESCRIPTOR_BYTES] = descriptor.encode(page);
        self.slice.put_back(descriptor_at(page), &bytes);
    }
}

impl State {
    /// Largest number of adjacent pages that could be taken, counting empty runs as free.
    fn pages_within_reach(&mut self) -> u32 {
        // Merged with free neighbours, as giving them back would do.
        let empty: Vec<(u32, u8)> = self.lists.runs.surplus(0).collect();
        let given: Vec<(u32, u32)> = empty
            .iter()
            .map(|(page, class)| (*page, RUNS[usize::from(*class)].pages))
            .collect();
        given
            .iter()
            .for_each(|(page, pages)| self.lists.free.give(*page, *pages));
        let largest = self.lists.free.largest();
        for (page, pages) in given {
            let back = self.lists.free.take_at(page, pages);
            assert!(back, "pages that were given back can be taken again");
        }
        largest
    }

    fn no_room(&mut self, asked: usize) -> AllocError {
        self.counts.refused += 1;
        let largest = page_at(self.lists.free.largest()).max(self.lists.runs.largest());
        AllocError::NoRoom { asked, largest }
    }
}
