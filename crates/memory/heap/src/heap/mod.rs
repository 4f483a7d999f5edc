//! The heap: what is durable stands in the region, what is volatile under one lock here.

mod alloc;
mod end;
mod format;
mod free;
mod remote_changes;
mod report;
mod resize;
mod typed;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_rvm::{Participant, RangeError, Region, RestoreMode};

pub use typed::{BorrowedHeap, HeapEdit, HeapView};

use crate::block::HeapBytes;
use crate::error::{AllocError, HeapDamage, HeapOpenError};
use crate::layout::{
    DESCRIPTOR_BYTES, HEADER_BYTES, HeapGeometry, PageDescriptor, decode_header, descriptor_at,
};
use crate::limit::{SCAN_STEP_BYTES, TRANSACTIONS_MAX};
use crate::page_map::PageMap;
use crate::pages::FreePages;
use crate::region_slice::RegionSlice;
use crate::runs::RunTable;
use crate::stats::HeapCounts;
use crate::transact::Transact;
use remote_changes::RemoteChanges;

/// A persistent heap in a region: blocks are allocated, freed and resized within transactions, and are after
/// a crash what the committed ones made of them.
///
/// Any number of threads and open transactions may use it at once. A block that a transaction freed is given
/// out again only when that transaction has committed; a block that it allocated comes back when it aborts.
/// Blocks that one open transaction allocated or resized are refused to the others; what stands in blocks is
/// their programs' affair, as with all recoverable memory.
///
/// One value for a heap at a time: each keeps its own list of what is free, and two would give one block out
/// twice. Share the value; open again only when it is dropped. Nothing here detects a second one.
///
/// Changing a block's bytes takes the region's lock: hold no guard of the region (a [`HeapView`], an
/// [`HeapEdit`]) across a call.
pub struct Heap {
    inner: Arc<Inner>,
    /// `inner` again, as transactions know it.
    participant: Arc<dyn Participant>,
}

struct Inner {
    slice: RegionSlice,
    geometry: HeapGeometry,
    remote_changes: RemoteChanges,
    state: Mutex<State>,
}

/// Everything volatile. Locked before the region, never while the region is locked by the same thread.
struct State {
    lists: Lists,
    /// Extents with open business, and whose.
    extents: HashMap<u32, u16>,
    /// Open business, by owner minus one.
    open: Vec<PendingSteps>,
    /// Places in `open` that nobody has.
    vacant: Vec<u16>,
    counts: HeapCounts,
}

/// What is known of the heap's bytes.
struct Lists {
    free: FreePages,
    runs: RunTable,
    /// Pages of the extents, by their first: what becomes free when another node has freed one.
    lengths: PageMap,
}

/// What an open transaction did to the heap, oldest first.
#[derive(Default)]
struct PendingSteps {
    steps: Vec<Step>,
    /// The transaction does not restore: its end must put the heap's own bytes back.
    leaves: bool,
}

/// One thing done to the heap.
#[derive(Clone, Copy, Debug)]
enum Step {
    TookSlot {
        page: u32,
        slot: u32,
    },
    FreedSlot {
        page: u32,
        slot: u32,
    },
    TookPages {
        page: u32,
        pages: u32,
    },
    FreedPages {
        page: u32,
        pages: u32,
    },
    /// A run was made of free pages, in this transaction.
    Carved {
        page: u32,
        class: u8,
    },
    /// An empty run was made free pages, in this transaction.
    GaveBack {
        page: u32,
        class: u8,
    },
    /// An extent has other pages than before, from the same first one on.
    Resized {
        page: u32,
        from: u32,
        to: u32,
    },
}

impl Heap {
    /// Opens the heap in a region in which no open transaction has ranges. Reads the header and the page
    /// table, eight bytes for each page; blocks and runs stay untouched until they are needed. Another value
    /// for the same heap is void from then on, as after [`Heap::format`].
    pub fn open(region: impl Into<Arc<Region>>) -> Result<Heap, HeapOpenError> {
        Heap::open_in(region.into(), 0, usize::MAX)
    }

    /// Opens the heap in a part of a region, from `start` on, at most `length` bytes. The heap keeps the
    /// holder. Another value for the same heap is void from then on.
    pub fn open_in(
        holder: Arc<dyn AsRef<Region> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Result<Heap, HeapOpenError> {
        let ground = RegionSlice::new(holder, start, length);
        // What they did to a heap here would be taken for committed, and may still be undone.
        match ground.region().open_transactions() {
            0 => Heap::open_on(ground, 0),
            transactions => Err(HeapOpenError::Busy { transactions }),
        }
    }

    /// Opens the heap in a part of a shared region, as [`Heap::open_in`] does, while the caller's lock keeps
    /// others from changing it. Its pointers count from the region's beginning, so that they mean the same in
    /// all of its heaps. Whoever applies others' records tells it of them: [`Heap::note_remote`].
    pub fn open_shared(
        holder: Arc<dyn AsRef<Region> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Result<Heap, HeapOpenError> {
        Heap::open_on(RegionSlice::new(holder, start, length), start as u64)
    }

    fn open_on(ground: RegionSlice, origin: u64) -> Result<Heap, HeapOpenError> {
        let geometry = header(&ground, ground.len() as u64)?.counted_from(origin);
        let state = State {
            lists: Lists::scan(&ground, geometry)?,
            extents: HashMap::new(),
            open: Vec::new(),
            vacant: Vec::new(),
            counts: HeapCounts::default(),
        };
        let inner = Arc::new(Inner {
            slice: ground,
            geometry,
            remote_changes: RemoteChanges::default(),
            state: Mutex::new(state),
        });
        let participant = Arc::clone(&inner) as Arc<dyn Participant>;
        Ok(Heap { inner, participant })
    }

    /// The region that the heap stands in.
    pub fn region(&self) -> &Region {
        self.inner.slice.region()
    }

    /// Where in the region the heap begins.
    pub fn start(&self) -> usize {
        self.inner.slice.start()
    }

    /// Where in the region pointers count from: where the heap begins, or the region, if that is shared.
    pub fn base(&self) -> usize {
        self.start() - self.inner.geometry.origin as usize
    }

    /// Looks at what other nodes have changed, as every call that allocates or frees does first: for
    /// [`Heap::statistics`] and [`Heap::has_room`] on a shared region, which then are of this moment.
    pub fn catch_up<X: Transact>(&self, transaction: &X) -> Result<(), AllocError> {
        self.admit(transaction)?;
        Ok(self.inner.reload(&mut self.inner.lock())?)
    }

    /// Fails unless the transaction may change the heap, and others may not.
    fn admit<X: Transact>(&self, transaction: &X) -> Result<(), RangeError> {
        let bytes = self.inner.geometry.bytes() as usize;
        transaction.admits(self.region(), self.start(), bytes)
    }

    /// The number under which the transaction has business here; enters it when it is new.
    fn owner<X: Transact>(&self, state: &mut State, transaction: &mut X) -> Result<u16, OwnerError> {
        if !transaction.is_open() {
            return Err(OwnerError::Range(RangeError::Ended));
        }
        if let Some(note) = transaction.note_of(&self.participant) {
            return Ok(note as u16 + 1);
        }
        self.admit(transaction)?;
        self.inner.reload(state)?;
        let place = match state.vacant.pop() {
            Some(place) => place,
            None if state.open.len() < TRANSACTIONS_MAX => {
                state.open.push(PendingSteps::default());
                state.open.len() as u16 - 1
            }
            None => return Err(OwnerError::TooMany),
        };
        state.open[usize::from(place)].leaves = transaction.mode() == RestoreMode::NoRestore;
        transaction.enlist(&self.participant, place.into());
        Ok(place + 1)
    }
}

/// Why a transaction cannot have business here.
enum OwnerError {
    Range(RangeError),
    Damaged(HeapDamage),
    TooMany,
}

impl From<RangeError> for OwnerError {
    fn from(error: RangeError) -> OwnerError {
        OwnerError::Range(error)
    }
}

impl From<HeapDamage> for OwnerError {
    fn from(damage: HeapDamage) -> OwnerError {
        OwnerError::Damaged(damage)
    }
}

impl Lists {
    fn scan(ground: &RegionSlice, geometry: HeapGeometry) -> Result<Lists, HeapDamage> {
        let mut lists = Lists {
            free: FreePages::default(),
            runs: RunTable::new(geometry.pages),
            lengths: PageMap::new(geometry.pages),
        };
        scan(ground, geometry, &mut |found| match found {
            ScanItem::Free { page, pages } => lists.free.give(page, pages),
            ScanItem::Run { page, class } => lists.runs.add_scanned(page, class),
            ScanItem::Extent { page, pages } => lists.lengths.set(page, pages),
        })?;
        Ok(lists)
    }
}

impl Inner {
    /// A panic elsewhere says nothing about the heap: steps change it only once they cannot fail any more.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, owner: u16, step: Step) {
        self.open[usize::from(owner) - 1].steps.push(step);
    }
}

/// Checks the header of a heap in `room` bytes.
pub(crate) fn header<B: HeapBytes + ?Sized>(bytes: &B, room: u64) -> Result<HeapGeometry, HeapOpenError> {
    if room < HEADER_BYTES as u64 {
        return Err(HeapOpenError::Foreign);
    }
    let mut raw = [0; HEADER_BYTES];
    bytes.copy(0, &mut raw);
    decode_header(&raw, room)
}

/// What a scan of the table comes by, in the order of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanItem {
    Free { page: u32, pages: u32 },
    Run { page: u32, class: u8 },
    Extent { page: u32, pages: u32 },
}

/// Goes through the table once.
pub(crate) fn scan<B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    each: &mut dyn FnMut(ScanItem),
) -> Result<(), HeapDamage> {
    let mut raw = vec![0; SCAN_STEP_BYTES];
    // Pages below `free` have been told of; up to `claimed` they belong to what begins at `owner`.
    let (mut free, mut claimed, mut owner) = (geometry.first, geometry.first, 0);
    let mut page = geometry.first;
    while page < geometry.pages {
        let count = ((geometry.pages - page) as usize).min(SCAN_STEP_BYTES / DESCRIPTOR_BYTES);
        let raw = &mut raw[..count * DESCRIPTOR_BYTES];
        bytes.copy(descriptor_at(page), raw);
        let (descriptors, _) = raw.as_chunks::<DESCRIPTOR_BYTES>();
        for raw in descriptors {
            let found = PageDescriptor::decode(*raw, page, geometry)?;
            if found != PageDescriptor::Empty {
                if page < claimed {
                    return Err(HeapDamage::Overlap { page, by: owner });
                }
                if free < page {
                    each(ScanItem::Free {
                        page: free,
                        pages: page - free,
                    });
                }
                match found {
                    PageDescriptor::Run { class } => each(ScanItem::Run { page, class }),
                    _ => each(ScanItem::Extent {
                        page,
                        pages: found.pages(),
                    }),
                }
                (owner, claimed) = (page, page + found.pages());
                free = claimed;
            }
            page += 1;
        }
    }
    if free < geometry.pages {
        each(ScanItem::Free {
            page: free,
            pages: geometry.pages - free,
        });
    }
    Ok(())
}

impl fmt::Debug for Heap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Heap")
            .field("region", self.region())
            .finish_non_exhaustive()
    }
}
