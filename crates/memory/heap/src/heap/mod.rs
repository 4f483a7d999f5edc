//! The heap: durable data in the region, and volatile data under one lock.

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

/// A persistent heap in a region. Blocks are allocated, freed and resized within transactions; after a crash
/// the heap contains the blocks of committed ones.
///
/// Any number of threads and open transactions may use it at once. A block that a transaction freed is reused
/// only after that transaction has committed; a block that it allocated becomes free when it aborts. A block
/// that one open transaction allocated or resized cannot be freed or resized by others. Conflicts in the
/// blocks' contents are the programs' affair, as with all recoverable memory.
///
/// Use only one value for a heap at a time: each keeps its own list of free blocks, and two would allocate
/// one block twice. Share the value, and open the heap again only after dropping it. A second value is not
/// detected.
///
/// Changing a block's bytes takes the region's lock: hold no guard of the region, such as a [`HeapView`] or
/// [`HeapEdit`], across a call.
pub struct Heap {
    inner: Arc<Inner>,
    /// `inner` as a participant of transactions.
    participant: Arc<dyn Participant>,
}

struct Inner {
    slice: RegionSlice,
    geometry: HeapGeometry,
    remote_changes: RemoteChanges,
    state: Mutex<State>,
}

/// All volatile data. Locked before the region, never while the same thread has the region locked.
struct State {
    lists: Lists,
    /// Owners of extents that open transactions use, by first page.
    extents: HashMap<u32, u16>,
    /// Steps of open transactions, by owner number minus one.
    open: Vec<PendingSteps>,
    /// Unused indexes of `open`.
    vacant: Vec<u16>,
    counts: HeapCounts,
}

/// Volatile lists read from the heap's bytes.
struct Lists {
    free: FreePages,
    runs: RunTable,
    /// Length of each extent, by first page: the pages that become free when another node has freed it.
    lengths: PageMap,
}

/// Steps of an open transaction in the heap, oldest first.
#[derive(Default)]
struct PendingSteps {
    steps: Vec<Step>,
    /// The transaction does not restore memory, so the heap must restore its own bytes when it aborts.
    leaves: bool,
}

/// One change of the heap.
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
    /// A run was carved out of free pages, within this transaction.
    Carved {
        page: u32,
        class: u8,
    },
    /// An empty run was turned back into free pages, within this transaction.
    GaveBack {
        page: u32,
        class: u8,
    },
    /// An extent was resized in place; its first page is the same.
    Resized {
        page: u32,
        from: u32,
        to: u32,
    },
}

impl Heap {
    /// Opens the heap in a region in which no open transaction has ranges. Reads the header and the page
    /// table, eight bytes per page; blocks and runs are read when they are needed. An earlier value for the
    /// same heap must not be used any more.
    ///
    /// # Errors
    ///
    /// [`HeapOpenError`] if the region contains no intact heap of this version, or open transactions have
    /// ranges in it.
    pub fn open(region: impl Into<Arc<Region>>) -> Result<Heap, HeapOpenError> {
        Heap::open_in(region.into(), 0, usize::MAX)
    }

    /// Opens the heap in a part of a region, at most `length` bytes from `start`. The heap keeps the owner of
    /// the region. An earlier value for the same heap must not be used any more.
    ///
    /// # Errors
    ///
    /// As [`Heap::open`].
    pub fn open_in(
        owner: Arc<dyn AsRef<Region> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Result<Heap, HeapOpenError> {
        let slice = RegionSlice::new(owner, start, length);
        // Changes of open transactions would be taken for committed, and may still be undone.
        match slice.region().open_transactions() {
            0 => Heap::open_on(slice, 0),
            transactions => Err(HeapOpenError::Busy { transactions }),
        }
    }

    /// Opens the heap in a part of a shared region, like [`Heap::open_in`], while the caller's lock keeps
    /// other nodes from changing it. Its pointers count from the region's beginning, so that they mean the
    /// same in all of its heaps. The applier of other nodes' records must call [`Heap::note_remote`].
    ///
    /// # Errors
    ///
    /// As [`Heap::open`], except for open transactions.
    pub fn open_shared(
        owner: Arc<dyn AsRef<Region> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Result<Heap, HeapOpenError> {
        Heap::open_on(RegionSlice::new(owner, start, length), start as u64)
    }

    fn open_on(slice: RegionSlice, origin: u64) -> Result<Heap, HeapOpenError> {
        let geometry = header(&slice, slice.len() as u64)?.counted_from(origin);
        let state = State {
            lists: Lists::scan(&slice, geometry)?,
            extents: HashMap::new(),
            open: Vec::new(),
            vacant: Vec::new(),
            counts: HeapCounts::default(),
        };
        let inner = Arc::new(Inner {
            slice,
            geometry,
            remote_changes: RemoteChanges::default(),
            state: Mutex::new(state),
        });
        let participant = Arc::clone(&inner) as Arc<dyn Participant>;
        Ok(Heap { inner, participant })
    }

    /// The region that contains the heap.
    pub fn region(&self) -> &Region {
        self.inner.slice.region()
    }

    /// Offset of the heap in the region.
    pub fn start(&self) -> usize {
        self.inner.slice.start()
    }

    /// Origin of pointers in the region: the heap's beginning, or 0 in a shared region.
    pub fn base(&self) -> usize {
        self.start() - self.inner.geometry.origin as usize
    }

    /// Reads the changes of other nodes, like every call that allocates or frees. Needed before
    /// [`Heap::statistics`] and [`Heap::has_room`] on a shared region, which otherwise may be out of date.
    ///
    /// # Errors
    ///
    /// [`AllocError::Range`] if the transaction may not change the heap; [`AllocError::Damaged`] if other
    /// nodes' changes damaged it.
    pub fn catch_up<X: Transact>(&self, transaction: &X) -> Result<(), AllocError> {
        self.admit(transaction)?;
        Ok(self.inner.reload(&mut self.inner.lock())?)
    }

    /// Fails unless the transaction may change the heap, and other transactions may not.
    fn admit<X: Transact>(&self, transaction: &X) -> Result<(), RangeError> {
        let bytes = self.inner.geometry.bytes() as usize;
        transaction.admits(self.region(), self.start(), bytes)
    }

    /// The owner number of the transaction in this heap, assigned now if it is new.
    fn owner<X: Transact>(&self, state: &mut State, transaction: &mut X) -> Result<u16, OwnerError> {
        if !transaction.is_open() {
            return Err(OwnerError::Range(RangeError::Ended));
        }
        if let Some(note) = transaction.note_of(&self.participant) {
            return Ok(note as u16 + 1);
        }
        self.admit(transaction)?;
        self.inner.reload(state)?;
        let index = match state.vacant.pop() {
            Some(index) => index,
            None if state.open.len() < TRANSACTIONS_MAX => {
                state.open.push(PendingSteps::default());
                state.open.len() as u16 - 1
            }
            None => return Err(OwnerError::TooMany),
        };
        state.open[usize::from(index)].leaves = transaction.mode() == RestoreMode::NoRestore;
        transaction.enlist(&self.participant, index.into());
        Ok(index + 1)
    }
}

/// Why a transaction cannot use the heap.
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
    fn scan(slice: &RegionSlice, geometry: HeapGeometry) -> Result<Lists, HeapDamage> {
        let mut lists = Lists {
            free: FreePages::default(),
            runs: RunTable::new(geometry.pages),
            lengths: PageMap::new(geometry.pages),
        };
        scan(slice, geometry, &mut |found| match found {
            ScanItem::Free { page, pages } => lists.free.give(page, pages),
            ScanItem::Run { page, class } => lists.runs.add_scanned(page, class),
            ScanItem::Extent { page, pages } => lists.lengths.set(page, pages),
        })?;
        Ok(lists)
    }
}

impl Inner {
    /// Poisoning is ignored: steps change the state only after everything that can fail.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn note(&mut self, owner: u16, step: Step) {
        self.open[usize::from(owner) - 1].steps.push(step);
    }
}

/// Decodes and checks the header of a heap in `room` bytes.
pub(crate) fn header<B: HeapBytes + ?Sized>(bytes: &B, room: u64) -> Result<HeapGeometry, HeapOpenError> {
    if room < HEADER_BYTES as u64 {
        return Err(HeapOpenError::Foreign);
    }
    let mut raw = [0; HEADER_BYTES];
    bytes.copy(0, &mut raw);
    decode_header(&raw, room)
}

/// Item found by a scan of the table, in the order of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanItem {
    Free { page: u32, pages: u32 },
    Run { page: u32, class: u8 },
    Extent { page: u32, pages: u32 },
}

/// Scans the table once.
pub(crate) fn scan<B: HeapBytes + ?Sized>(
    bytes: &B,
    geometry: HeapGeometry,
    each: &mut dyn FnMut(ScanItem),
) -> Result<(), HeapDamage> {
    let mut raw = vec![0; SCAN_STEP_BYTES];
    // Pages below `free` were already reported; pages up to `claimed` belong to the item that begins at
    // `owner`.
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
