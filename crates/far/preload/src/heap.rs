//! The program's heap in the arena: addresses for the program, pages for [`PageRuns`].

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_far::{ArenaSpace, ArenaStatus};
use netram_far_machine::limit::PAGE_BYTES;

use crate::abi;
use crate::page_runs::{PageRange, PageRuns};
use crate::slabs::{SLAB_PAGES, SLOT_ALIGN, SlabClass, SlabTable};
use crate::start::remark;

/// Step, in pages, by which the part included in core dumps grows.
const DUMP_PAGES: u32 = 4096;

pub(crate) struct PreloadHeap {
    space: ArenaSpace,
    addresses: Range<usize>,
    parts: Mutex<PreloadHeapState>,
    /// Minimum bytes of an allocation in the arena.
    pub(crate) threshold: usize,
    /// Whether a refusal of memory has been reported.
    complained: AtomicBool,
}

/// State of the allocations.
pub(crate) struct PreloadHeapState {
    runs: PageRuns,
    slabs: SlabTable,
    /// Number of pages from the first that core dumps include, as far as they are local: all ever used, and
    /// few others.
    dumped: u32,
}

/// An allocation for the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreloadBlock {
    pub(crate) address: usize,
    /// Whether it may have content of an earlier allocation.
    pub(crate) used: bool,
}

impl PreloadHeapState {
    /// Number of pages from the first that may have content.
    pub(crate) fn used_pages(&self) -> u32 {
        match self.runs.taken_pages() {
            0 => 0,
            _ => self.dumped,
        }
    }

    /// Whether any addresses are lent.
    pub(crate) fn is_lending(&self) -> bool {
        self.runs.next_lent(&(0..self.dumped)).is_some()
    }
}

impl PreloadHeap {
    pub(crate) fn new(ground: ArenaSpace, threshold: usize) -> PreloadHeap {
        let addresses = ground.addresses();
        let pages = (addresses.len() / PAGE_BYTES) as u32;
        let runs = PageRuns::new(pages, (addresses.start / PAGE_BYTES) as u64);
        PreloadHeap {
            space: ground,
            addresses,
            parts: Mutex::new(PreloadHeapState {
                runs,
                slabs: SlabTable::default(),
                dumped: 0,
            }),
            threshold,
            complained: AtomicBool::new(false),
        }
    }

    /// The address range.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.addresses.clone()
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        self.addresses.contains(&address)
    }

    /// Allocates aligned memory. `None`: there are no free addresses, or no lender has room.
    pub(crate) fn take(&self, bytes: usize, align: usize) -> Option<PreloadBlock> {
        let class = match align <= SLOT_ALIGN {
            true => SlabClass::of(bytes),
            false => None,
        };
        let Some(class) = class else {
            let address = self.take_pages(bytes, align)?;
            return Some(PreloadBlock { address, used: false });
        };
        if let Some(address) = self.lock().slabs.take(class) {
            return Some(PreloadBlock { address, used: true });
        }
        if !self.has_room() {
            return None;
        }
        let mut parts = self.lock();
        let address = parts.slabs.take(class).or_else(|| {
            let first = parts.runs.take(SLAB_PAGES, 1)?;
            self.use_up_to(&mut parts, first + SLAB_PAGES);
            parts.slabs.add(class, self.address(first));
            parts.slabs.take(class)
        });
        drop(parts);
        if address.is_none() {
            self.complain_of_size();
        }
        Some(PreloadBlock {
            address: address?,
            used: true,
        })
    }

    /// Allocates whole pages of zeros, aligned to a page and to `align`. `None`: as [`PreloadHeap::take`].
    pub(crate) fn take_pages(&self, bytes: usize, align: usize) -> Option<usize> {
        // Larger than any arena, so a larger `--size` would not help.
        let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES)).ok()?;
        let align = align.div_ceil(PAGE_BYTES) as u64;
        if !self.has_room() {
            return None;
        }
        let mut parts = self.lock();
        let first = parts.runs.take(pages, align.max(1));
        match first {
            Some(first) => self.use_up_to(&mut parts, first + pages),
            // A larger arena would not help if no address has that alignment.
            None if align as usize > self.addresses.len() / PAGE_BYTES => (),
            None => self.complain_of_size(),
        }
        drop(parts);
        Some(self.address(first?))
    }

    /// Size of the allocation that begins at an address.
    pub(crate) fn bytes(&self, address: usize) -> Option<usize> {
        let parts = self.lock();
        if parts.slabs.has(address) {
            return parts.slabs.bytes(address);
        }
        if !address.is_multiple_of(PAGE_BYTES) {
            return None;
        }
        let pages = parts.runs.pages(self.page(address))?;
        Some(pages as usize * PAGE_BYTES)
    }

    /// Frees a slot of a slab. `false`: the address is not in one.
    pub(crate) fn give_slot(&self, address: usize) -> bool {
        let mut parts = self.lock();
        if !parts.slabs.has(address) {
            return false;
        }
        let slab = parts.slabs.give(address);
        drop(parts);
        if let Some(slab) = slab {
            self.give(slab);
        }
        true
    }

    /// Whether the whole range is allocated.
    pub(crate) fn has_all(&self, addresses: Range<usize>) -> bool {
        self.lock().runs.has_all(self.pages(&addresses))
    }

    /// Allocates a range, as zeros, for a mapping at its addresses. `false`: some of it is not available, and
    /// nothing has changed.
    pub(crate) fn claim(&self, addresses: Range<usize>) -> bool {
        let pages = self.pages(&addresses);
        let mut parts = self.lock();
        let claimed = parts.runs.claim(pages.clone());
        if claimed {
            self.use_up_to(&mut parts, pages.end);
        }
        drop(parts);
        if claimed {
            self.make_zeros(&pages);
        }
        claimed
    }

    /// Whether the whole range is free.
    pub(crate) fn are_free(&self, addresses: &Range<usize>) -> bool {
        self.lock().runs.are_free(&self.pages(addresses))
    }

    /// Lends allocated addresses to a mapping of another kind, for good: the kernel would have to be told of
    /// the arena anew.
    pub(crate) fn lend(&self, addresses: Range<usize>) {
        self.lock().runs.lend(self.pages(&addresses));
    }

    /// The first contiguous lent part of a range.
    pub(crate) fn next_lent(&self, addresses: &Range<usize>) -> Option<Range<usize>> {
        let lent = self.lock().runs.next_lent(&self.pages(addresses))?;
        Some(self.address(lent.start)..self.address(lent.end))
    }

    /// Resizes an allocation in place. `false`: there is no room after it, or it shrinks so much that it
    /// should move.
    pub(crate) fn resize(&self, address: usize, bytes: usize) -> bool {
        let Some(had) = self.bytes(address) else {
            return false;
        };
        if self.lock().slabs.has(address) {
            return bytes <= had && bytes > had / 2;
        }
        // More pages than there are addresses.
        let Some(pages) = u32::try_from(bytes.div_ceil(PAGE_BYTES)).ok() else {
            return false;
        };
        let bytes = pages as usize * PAGE_BYTES;
        if bytes < had {
            self.give(address + bytes..address + had);
        }
        let first = self.page(address);
        let mut parts = self.lock();
        if bytes > had && !parts.runs.grow(first, pages) {
            return false;
        }
        self.use_up_to(&mut parts, first + pages);
        true
    }

    /// Frees a range that may span several allocations; unallocated parts are skipped.
    pub(crate) fn give(&self, addresses: Range<usize>) {
        let mut rest = self.pages(&addresses);
        loop {
            let Some(cut) = self.lock().runs.cut(&rest) else {
                return;
            };
            // The freed part may be allocated again at once and is not examined again.
            rest.start = cut.end;
            // Not under the lock, because it waits for another thread.
            self.make_zeros(&cut);
            self.lock().runs.give(cut);
        }
    }

    /// Discards the content of allocated memory, which becomes zeros.
    pub(crate) fn empty(&self, addresses: Range<usize>) {
        self.make_zeros(&self.pages(&addresses));
    }

    /// Abandons a range that cannot be used again.
    pub(crate) fn leave(&self, addresses: Range<usize>) {
        let mut rest = self.pages(&addresses);
        loop {
            let Some(cut) = self.lock().runs.cut(&rest) else {
                return;
            };
            rest.start = cut.end;
            self.make_zeros(&cut);
        }
    }

    /// Whether a page was never written, or was freed since.
    pub(crate) fn is_blank(&self, page: usize) -> bool {
        abi::quietly(|| self.space.is_blank(page))
    }

    pub(crate) fn status(&self) -> ArenaStatus {
        abi::quietly(|| self.space.status())
    }

    /// Bytes allocated by the program.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.lock().runs.taken_pages() * PAGE_BYTES as u64
    }

    /// Locks the state. Also held while the process forks, so that the child's copy is consistent.
    pub(crate) fn lock(&self) -> MutexGuard<'_, PreloadHeapState> {
        // A panic under the lock ends the process, because it cannot unwind into C.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole pages that these addresses of the arena touch.
    fn pages(&self, addresses: &Range<usize>) -> PageRange {
        let end = (addresses.end - self.addresses.start).div_ceil(PAGE_BYTES);
        self.page(addresses.start)..end as u32
    }

    fn page(&self, address: usize) -> u32 {
        assert!(address >= self.addresses.start, "the address is in the arena");
        ((address - self.addresses.start) / PAGE_BYTES) as u32
    }

    fn address(&self, page: u32) -> usize {
        self.addresses.start + page as usize * PAGE_BYTES
    }

    fn make_zeros(&self, pages: &PageRange) {
        abi::quietly(|| self.space.empty(pages.start as usize..pages.end as usize));
    }

    /// Includes pages up to `end` in core dumps, now that they are used.
    fn use_up_to(&self, parts: &mut PreloadHeapState, end: u32) {
        if end > parts.dumped {
            let all = (self.addresses.len() / PAGE_BYTES) as u32;
            let more = end.next_multiple_of(DUMP_PAGES).min(all);
            self.space.dump(parts.dumped as usize..more as usize);
            parts.dumped = more;
        }
    }

    fn has_room(&self) -> bool {
        let room = abi::quietly(|| self.space.room());
        if let Err(error) = &room {
            self.complain(error);
        }
        room.is_ok()
    }

    fn complain_of_size(&self) {
        self.complain(&"its far memory is full; raise --size");
    }

    /// Reports once: a program that continues without memory may ask often.
    fn complain(&self, why: &dyn std::fmt::Display) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            remark(format_args!("an allocation is refused: {why}"));
        }
    }
}
