//! Transactions: declare ranges, change memory, commit or abort.

mod captured;
mod commit;
mod edit;
mod locks;
mod participant;
mod payload;
mod preamble;
mod regions;

pub use commit::CommitReceipt;
pub use edit::EditGuard;
pub use participant::{Participant, TransactionOutcome};

use payload::PayloadLayout;
use regions::TouchedRegions;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use netram_proto::port::RecordLog;
use zerocopy::{Immutable, IntoBytes};

use crate::capture::{PageCapture, Verifier};
use crate::error::RangeError;
use crate::limit::{POOL_BUFFER_BYTES_MAX, TRANSACTION_RANGES_MAX, TRANSACTION_REGIONS_MAX, UNDO_BYTES_MAX};
use crate::memory::RegionMemory;
use crate::options::RestoreMode;
use crate::range::RangeList;
use crate::region::{CaptureLoan, ExclusiveGuard, Region};
use crate::state::RvmState;
use crate::stats::add;
use crate::storage::SegmentStorage;

/// The memory of a transaction, reused by later ones.
#[derive(Default)]
pub(crate) struct TransactionBuffers {
    regions: TouchedRegions,
    ranges: RangeList,
    /// Old values, in the order of the declared ranges.
    undo: Vec<u8>,
    /// Capture state of regions whose stores are found by page, with the regions' indexes in the list.
    captures: Vec<(u32, Box<PageCapture>)>,
    /// Verifiers of verified regions, with the regions' indexes in the list and the transaction's number at
    /// each.
    verifiers: Vec<(u32, u64, Arc<Verifier>)>,
    /// Bytes for other readers that the record begins with.
    preamble: Vec<u8>,
    /// A record is written even without ranges.
    always: bool,
    layout: PayloadLayout,
    /// Participants to notify when the transaction ends, with their notes.
    enlisted: Vec<(Arc<dyn Participant>, u64)>,
}

impl TransactionBuffers {
    /// Empties the buffers; returns `false` if they have grown too large to keep.
    pub(crate) fn clear(&mut self) -> bool {
        assert!(
            self.regions.list.is_empty(),
            "the regions are let go when the transaction ends"
        );
        assert!(
            self.enlisted.is_empty(),
            "participants are told when the transaction ends"
        );
        self.ranges.clear();
        self.undo.clear();
        self.preamble.clear();
        self.always = false;
        self.ranges.capacity_bytes() + self.undo.capacity() <= POOL_BUFFER_BYTES_MAX
    }
}

/// A transaction. Dropping it aborts it.
///
/// Any number may be open at once, on any threads; each is used by one thread at a time. A transaction is
/// recorded whole or not at all, in the order of commits. Conflicts between transactions on the same bytes
/// are not detected; avoiding them is the program's task.
pub struct Transaction<L: RecordLog, S: SegmentStorage> {
    shared: Arc<RvmState<L, S>>,
    buffers: TransactionBuffers,
    mode: RestoreMode,
    open: bool,
    recent: Recent,
}

/// The mapping used last.
#[derive(Clone, Copy)]
struct Recent {
    /// Its address; zero if there is none yet.
    address: usize,
    /// Its address if a range declared there only needs a place in the list; zero if more must be done.
    plain: usize,
    /// Its index in the list of regions.
    index: u32,
    route: Route,
}

impl Recent {
    const NONE: Recent = Recent {
        address: 0,
        plain: 0,
        index: 0,
        route: Route::Recorded,
    };
}

/// How a declared range is handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// The range is recorded.
    Recorded,
    /// The range is recorded, and the verifier is notified.
    Verified,
    /// The policy of each page decides.
    Adaptive,
    /// The range is ignored, because the store is found by page.
    Captured,
}

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    pub(crate) fn new(
        shared: Arc<RvmState<L, S>>,
        buffers: TransactionBuffers,
        mode: RestoreMode,
    ) -> Transaction<L, S> {
        Transaction {
            shared,
            buffers,
            mode,
            open: true,
            recent: Recent::NONE,
        }
    }

    /// Whether an abort restores memory.
    pub fn mode(&self) -> RestoreMode {
        self.mode
    }

    /// Whether the transaction is neither committed nor aborted.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Number of ranges in the transaction's lists. Neighbours declared in succession count as one, and
    /// ranges that a large transaction keeps in bits are not counted.
    pub fn ranges(&self) -> usize {
        self.buffers.ranges.listed()
    }

    /// Whether ranges in the region were declared.
    pub fn has_ranges_in(&self, region: &Region) -> bool {
        self.buffers.regions.find(&region.mapping).is_ok()
    }

    /// Declares that `length` bytes at `offset` will change. The commit logs the values they then have. A
    /// zero length is accepted and has no effect.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if the range is outside the region or larger than a record, or the transaction cannot
    /// hold it. Nothing changed.
    // Costs 2 ns for a range in order where this is inlined, 3 ns otherwise: the common path makes no call
    // and saves nothing on the stack. The rest is reached by a jump with the arguments in place.
    #[inline]
    pub fn set_range(&mut self, region: &Region, offset: usize, length: usize) -> Result<(), RangeError> {
        if self.recent.plain == Arc::as_ptr(&region.mapping).addr()
            && length.wrapping_sub(1) < self.shared.range_max
            && region.mapping.check(offset, length).is_ok()
            && self
                .buffers
                .ranges
                .append(self.recent.index, offset as u64, length as u32)
        {
            return Ok(());
        }
        self.set_range_anyhow(region, offset, length)
    }

    #[inline(never)]
    fn set_range_anyhow(&mut self, region: &Region, offset: usize, length: usize) -> Result<(), RangeError> {
        let Some(index) = self.admit(region, offset, length)? else {
            return Ok(());
        };
        match self.mode {
            RestoreMode::NoRestore if self.recent.route == Route::Recorded => {
                self.declare(index, offset, length)
            }
            _ => self.declare_locked(&region.mapping.read(), index, offset, length),
        }
        Ok(())
    }

    /// Declares the range and copies `bytes` to it.
    ///
    /// # Errors
    ///
    /// As [`Transaction::set_range`].
    pub fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        let Some(index) = self.admit(region, offset, bytes.len())? else {
            return Ok(());
        };
        self.store(&mut region.mapping.write(), index, offset, bytes);
        Ok(())
    }

    /// Writes like [`Transaction::write`] under a guard that is already held: for many small changes the
    /// region's lock is taken only once.
    ///
    /// # Errors
    ///
    /// As [`Transaction::set_range`].
    pub fn write_in(
        &mut self,
        held: &mut ExclusiveGuard<'_>,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), RangeError> {
        if let Some(index) = self.admit(held.region, offset, bytes.len())? {
            self.store(&mut held.memory, index, offset, bytes);
        }
        Ok(())
    }

    #[inline]
    fn store(&mut self, memory: &mut RegionMemory, index: u32, offset: usize, bytes: &[u8]) {
        self.declare_locked(memory, index, offset, bytes.len());
        memory.copy_in(offset, bytes);
    }

    /// Declares the bytes of `value` and stores it there; `offset` need not be aligned.
    ///
    /// # Errors
    ///
    /// As [`Transaction::set_range`].
    pub fn set<T>(&mut self, region: &Region, offset: usize, value: &T) -> Result<(), RangeError>
    where
        T: IntoBytes + Immutable,
    {
        self.write(region, offset, value.as_bytes())
    }

    /// Exclusive access to the region's bytes, in which ranges are declared as they are borrowed.
    pub fn edit<'t>(&'t mut self, region: &'t Region) -> EditGuard<'t, L, S> {
        EditGuard::new(self, region)
    }

    /// Ends the transaction without logging anything. In [`RestoreMode::Restore`] memory is as it was before
    /// each range was declared; in [`RestoreMode::NoRestore`] it stays as it is, uncommitted.
    pub fn abort(self) {
        // Dropping the transaction aborts it.
    }

    /// Checks a range; returns the region's index, or `None` when there is nothing to declare.
    #[inline]
    pub(crate) fn admit(
        &mut self,
        region: &Region,
        offset: usize,
        length: usize,
    ) -> Result<Option<u32>, RangeError> {
        if !self.open {
            return Err(RangeError::Ended);
        }
        region.mapping.check(offset, length)?;
        if length > self.shared.range_max {
            return Err(RangeError::TooLarge {
                length,
                max: self.shared.range_max,
            });
        }
        if self.buffers.ranges.listed() >= TRANSACTION_RANGES_MAX {
            return Err(RangeError::TooMany {
                what: "ranges",
                max: TRANSACTION_RANGES_MAX,
            });
        }
        if self.buffers.undo.len() + length > UNDO_BYTES_MAX {
            return Err(RangeError::TooMany {
                what: "bytes of old values",
                max: UNDO_BYTES_MAX,
            });
        }
        if length == 0 {
            return Ok(None);
        }
        self.enter(region).map(Some)
    }

    /// The region's index in this transaction. The region becomes the one used last.
    #[inline]
    fn enter(&mut self, region: &Region) -> Result<u32, RangeError> {
        let address = Arc::as_ptr(&region.mapping).addr();
        if self.recent.address != address {
            let index = self.region_index(region)?;
            let route = self.route(index);
            let plain = self.mode == RestoreMode::NoRestore && route == Route::Recorded;
            self.recent = Recent {
                address,
                plain: if plain { address } else { 0 },
                index,
                route,
            };
        }
        Ok(self.recent.index)
    }

    /// The region's index in this transaction, entered now if it is new.
    #[cold]
    fn region_index(&mut self, region: &Region) -> Result<u32, RangeError> {
        let regions = &mut self.buffers.regions;
        let position = match regions.find(&region.mapping) {
            Ok(index) => return Ok(index),
            Err(position) => position,
        };
        if region.mapping.owner != self.shared.number {
            return Err(RangeError::ForeignRegion);
        }
        if regions.list.len() == TRANSACTION_REGIONS_MAX {
            return Err(RangeError::TooMany {
                what: "regions",
                max: TRANSACTION_REGIONS_MAX,
            });
        }
        let borrowed = region.mapping.borrow_capture()?;
        region.mapping.transactions.fetch_add(1, Ordering::AcqRel);
        let index = regions.enter(&region.mapping, position);
        match borrowed {
            CaptureLoan::Nothing => {}
            CaptureLoan::Capture(mut captured) => {
                captured.lend(self.mode == RestoreMode::Restore);
                self.buffers.captures.push((index, captured));
            }
            CaptureLoan::Verifier(verifier) => {
                self.buffers.verifiers.push((index, verifier.enter(), verifier));
            }
        }
        Ok(index)
    }

    /// Declares an admitted range while its region's lock is held.
    #[inline]
    pub(crate) fn declare_locked(&mut self, memory: &RegionMemory, index: u32, offset: usize, length: usize) {
        match self.recent.route {
            Route::Recorded => {}
            Route::Verified => self.tell_verifier(index, offset, length),
            Route::Adaptive => return self.declare_by_page(memory, index, offset, length),
            Route::Captured => return,
        }
        self.record(memory, index, offset, length);
    }

    #[inline]
    fn record(&mut self, memory: &RegionMemory, index: u32, offset: usize, length: usize) {
        match self.mode {
            RestoreMode::NoRestore => self.declare(index, offset, length),
            RestoreMode::Restore => self.declare_restorable(memory, index, offset, length),
        }
    }

    #[inline]
    fn declare(&mut self, index: u32, offset: usize, length: usize) {
        // The largest range fits 32 bits (asserted at the opening).
        self.buffers
            .ranges
            .declare(index, offset as u64, length as u32, false);
    }

    fn declare_restorable(&mut self, memory: &RegionMemory, index: u32, offset: usize, length: usize) {
        let ranges = &mut self.buffers.ranges;
        let (fresh, count) = ranges.declare(index, offset as u64, length as u32, true);
        let undo = &mut self.buffers.undo;
        let before = undo.len();
        undo.resize(before + count as usize, 0);
        memory.copy_out(fresh as usize, &mut undo[before..]);
    }

    /// Restores old values, newest first, so that a byte with several gets the oldest.
    fn restore(&mut self) {
        let TransactionBuffers {
            regions,
            ranges,
            undo,
            ..
        } = &self.buffers;
        let mut at = undo.len();
        for group in ranges.restorable().chunk_by(|a, b| a.region == b.region).rev() {
            let mut memory = regions.list[group[0].region as usize].write();
            for range in group.iter().rev() {
                let end = at;
                at -= range.length as usize;
                memory.copy_in(range.offset as usize, &undo[at..end]);
            }
        }
        assert_eq!(at, 0);
    }

    /// Ends the transaction, notifies the participants, then releases its regions: until the participants
    /// have restored their bytes, the regions count as in use. No region may be locked.
    fn finish(&mut self, outcome: TransactionOutcome) {
        self.open = false;
        self.recent = Recent::NONE;
        let TransactionBuffers {
            regions,
            enlisted,
            captures,
            verifiers,
            ..
        } = &mut self.buffers;
        for (index, number, verifier) in verifiers.drain(..) {
            verifier.leave(number, &regions.list[index as usize].read());
        }
        for (index, mut captured) in captures.drain(..) {
            captured.lend(true);
            regions.list[index as usize].return_capture(captured);
        }
        let _held = ReleaseGuard(regions);
        for (participant, note) in enlisted.drain(..) {
            participant.ended(note, outcome);
        }
    }
}

/// Releases the regions of an ending transaction when dropped, also if a participant panics.
struct ReleaseGuard<'t>(&'t mut TouchedRegions);

impl Drop for ReleaseGuard<'_> {
    fn drop(&mut self) {
        for mapping in self.0.drain() {
            mapping.transactions.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl<L: RecordLog, S: SegmentStorage> Drop for Transaction<L, S> {
    fn drop(&mut self) {
        if self.open {
            if self.mode == RestoreMode::Restore {
                self.restore();
            }
            self.abort_stores();
            self.finish(TransactionOutcome::Aborted);
            add(&self.shared.counters.aborts, 1);
        }
        self.shared.reuse(std::mem::take(&mut self.buffers));
    }
}

impl<L: RecordLog, S: SegmentStorage> std::fmt::Debug for Transaction<L, S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Transaction { mode, open, .. } = self;
        out.debug_struct("Transaction")
            .field("mode", mode)
            .field("open", open)
            .finish_non_exhaustive()
    }
}
