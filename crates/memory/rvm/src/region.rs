//! A mapped part of a segment.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use zerocopy::FromBytes;

use crate::capture::{CaptureMode, PageCapture, Twins, Verifier};
use crate::declared::UndeclaredStore;
use crate::error::{CaptureError, ForeignError, RangeError, UnmapError};
use crate::limit::COPY_BYTES;
use crate::memory::{RegionAddress, RegionMemory};
use crate::record::{RangeView, RecordChanges, RecordScope};
use crate::segments::SegmentMark;
use crate::sync::lock;

/// A mapped part of a segment: memory whose committed bytes survive crashes.
///
/// Reading takes the region's lock shared and changing takes it exclusively, for as long as a guard lives.
/// Hold at most one guard at a time, and none across a commit, which locks all its regions. The lock protects
/// memory, not meaning: by design RVM does not detect conflicts between transactions.
///
/// Dropping a region unmaps it as soon as no open transaction has ranges in it. Committed bytes are safe;
/// stores outside a committed range are forgotten.
#[derive(Debug)]
pub struct Region {
    pub(crate) mapping: Arc<RegionMapping>,
}

/// State shared by a region and the transactions that touch it.
#[derive(Debug)]
pub(crate) struct RegionMapping {
    // Declared before the memory, so that page protection ends before the memory is unmapped.
    capture: Mutex<CaptureState>,
    /// The capture mode is not `Declared`. Transactions check this first.
    by_page: AtomicBool,
    memory: RwLock<RegionMemory>,
    address: RegionAddress,
    pub(crate) length: usize,
    /// Where in the segment the region begins.
    pub(crate) base: u64,
    pub(crate) path: Arc<str>,
    pub(crate) segment: Arc<SegmentMark>,
    /// Open transactions with ranges here.
    pub(crate) transactions: AtomicUsize,
    /// Number of the `Rvm` that the region belongs to.
    pub(crate) owner: u64,
}

/// Where the state is that finds the region's stores by page.
#[derive(Debug)]
enum CaptureState {
    /// Stores are declared, so there is no such state.
    Declared,
    /// One transaction at a time borrows the state; `None` while it is lent. Foreign records need the twins
    /// even then.
    Paged {
        twins: Arc<Twins>,
        free: Option<Box<PageCapture>>,
    },
    /// All transactions share the verifier.
    Verified(Arc<Verifier>),
}

impl CaptureState {
    fn paged(captured: PageCapture) -> CaptureState {
        CaptureState::Paged {
            twins: Arc::clone(captured.twins()),
            free: Some(Box::new(captured)),
        }
    }
}

/// Capture state that a transaction gets from a region when it enters it.
#[derive(Debug)]
pub(crate) enum CaptureLoan {
    /// Stores are declared; nothing is lent.
    Nothing,
    Capture(Box<PageCapture>),
    Verifier(Arc<Verifier>),
}

impl RegionMapping {
    /// Borrows the state that finds the region's stores by page, for one transaction; or shares the verifier.
    pub(crate) fn borrow_capture(&self) -> Result<CaptureLoan, RangeError> {
        if !self.by_page.load(Ordering::Acquire) {
            return Ok(CaptureLoan::Nothing);
        }
        match &mut *lock(&self.capture) {
            CaptureState::Declared => Ok(CaptureLoan::Nothing),
            CaptureState::Paged { free, .. } => {
                free.take().map(CaptureLoan::Capture).ok_or(RangeError::Captured)
            }
            CaptureState::Verified(verifier) => Ok(CaptureLoan::Verifier(verifier.clone())),
        }
    }

    /// Whether the region's stores are found by page, so that only one transaction at a time may store.
    pub(crate) fn is_captured(&self) -> bool {
        let by_page = self.by_page.load(Ordering::Acquire);
        by_page && matches!(*lock(&self.capture), CaptureState::Paged { .. })
    }

    fn verifier(&self) -> Option<Arc<Verifier>> {
        if !self.by_page.load(Ordering::Acquire) {
            return None;
        }
        match &*lock(&self.capture) {
            CaptureState::Verified(verifier) => Some(verifier.clone()),
            _ => None,
        }
    }

    /// Describes a run of undeclared bytes, for users.
    pub(crate) fn undeclared(&self, (offset, length): (usize, usize)) -> UndeclaredStore {
        UndeclaredStore {
            segment: self.path.clone(),
            offset: self.base + offset as u64,
            region_offset: offset,
            length,
            address: self.address() + offset,
        }
    }

    /// Returns the state that a transaction borrowed.
    pub(crate) fn return_capture(&self, captured: Box<PageCapture>) {
        if let CaptureState::Paged { free, .. } = &mut *lock(&self.capture) {
            *free = Some(captured);
        }
    }

    pub(crate) fn new(
        memory: RegionMemory,
        base: u64,
        path: Arc<str>,
        segment: Arc<SegmentMark>,
        owner: u64,
    ) -> RegionMapping {
        let (address, length) = (memory.address(), memory.len());
        let memory = RwLock::new(memory);
        RegionMapping {
            capture: Mutex::new(CaptureState::Declared),
            by_page: AtomicBool::new(false),
            memory,
            address,
            length,
            base,
            path,
            segment,
            transactions: AtomicUsize::new(0),
            owner,
        }
    }

    // Poisoning is ignored: a panic while a guard was held says nothing about the bytes, and dropping the
    // transaction restores them if it is a restoring one.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, RegionMemory> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, RegionMemory> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_write(&self) -> Option<RwLockWriteGuard<'_, RegionMemory>> {
        match self.memory.try_write() {
            Ok(memory) => Some(memory),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.address.get().addr()
    }

    pub(crate) fn check(&self, offset: usize, length: usize) -> Result<usize, RangeError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.length => Ok(end),
            _ => Err(RangeError::OutOfRegion {
                offset,
                length,
                region: self.length,
            }),
        }
    }
}

impl RegionMapping {
    /// Checks that a record's changes all lie in this region.
    pub(crate) fn admits(&self, changes: &RecordChanges<'_>) -> Result<(), ForeignError> {
        match changes.scope() {
            RecordScope::Nothing => Ok(()),
            RecordScope::Several => Err(ForeignError::Several),
            RecordScope::Segment { segment, .. } if segment != self.segment.index => {
                Err(ForeignError::Segment { segment })
            }
            RecordScope::Segment { start, end, .. } => {
                let region_end = self.base + self.length as u64;
                match self.base <= start && end <= region_end {
                    true => Ok(()),
                    false => Err(ForeignError::OutOfRegion {
                        start,
                        end,
                        region_start: self.base,
                        region_end,
                    }),
                }
            }
        }
    }

    /// Stores a record's changes, which all lie here, to the region's memory.
    ///
    /// The copies are made without a reference to the rest of the region. About 4 ns a small range in cache
    /// (`cargo run --release -p netram-rvm --example record`).
    pub(crate) fn store(&self, memory: &mut RegionMemory, changes: &RecordChanges<'_>) {
        if self.by_page.load(Ordering::Acquire) {
            return changes
                .ranges()
                .for_each(|range| self.store_range(memory, &range));
        }
        changes.ranges().for_each(|range| self.copy_in(memory, &range));
    }

    /// Stores one range of a record, which lies here.
    pub(crate) fn store_range(&self, memory: &mut RegionMemory, range: &RangeView<'_>) {
        let offset = (range.offset - self.base) as usize;
        match &*lock(&self.capture) {
            CaptureState::Declared => self.copy_in(memory, range),
            CaptureState::Paged { twins, .. } => twins.store(memory, offset, range.bytes),
            CaptureState::Verified(verifier) => {
                self.copy_in(memory, range);
                verifier.stored(memory, offset, range.bytes.len());
            }
        }
    }

    #[inline]
    fn copy_in(&self, memory: &mut RegionMemory, range: &RangeView<'_>) {
        let mut from = (range.offset - self.base) as usize;
        for bytes in range.bytes.chunks(COPY_BYTES) {
            memory.copy_in(from, bytes);
            from += COPY_BYTES;
        }
    }
}

/// Shared access to a region's bytes.
#[derive(Debug)]
pub struct ReadGuard<'r>(RwLockReadGuard<'r, RegionMemory>);

impl Deref for ReadGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Exclusive access to a region's bytes across many changes: no other thread reads or changes any during its
/// life.
///
/// The bytes can be read; stores go through a transaction, [`crate::Transaction::write_in`]. Unlike an
/// [edit](crate::Transaction::edit) it borrows no transaction, so both can be kept in one value.
#[derive(Debug)]
pub struct ExclusiveGuard<'r> {
    pub(crate) region: &'r Region,
    pub(crate) memory: RwLockWriteGuard<'r, RegionMemory>,
}

impl ExclusiveGuard<'_> {
    /// The region that is locked.
    pub fn region(&self) -> &Region {
        self.region
    }
}

impl Deref for ExclusiveGuard<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl AsRef<Region> for Region {
    fn as_ref(&self) -> &Region {
        self
    }
}

impl Region {
    /// Bytes in the region.
    #[allow(clippy::len_without_is_empty, reason = "an empty region cannot be mapped")]
    pub fn len(&self) -> usize {
        self.mapping.length
    }

    /// Open transactions with ranges in the region.
    pub fn open_transactions(&self) -> usize {
        self.mapping.transactions.load(Ordering::Acquire)
    }

    /// Where in its segment the region begins.
    pub fn segment_offset(&self) -> u64 {
        self.mapping.base
    }

    /// The segment's path.
    pub fn segment_path(&self) -> &str {
        &self.mapping.path
    }

    /// Shared access to the region's bytes: no thread changes them until the guard is dropped.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(self.mapping.read())
    }

    /// Exclusive access to the region's bytes until the guard is dropped.
    pub fn exclusive(&self) -> ExclusiveGuard<'_> {
        ExclusiveGuard {
            region: self,
            memory: self.mapping.write(),
        }
    }

    /// A copy of the value at `offset`, which need not be aligned.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfRegion`] if the value does not lie in the region.
    pub fn get<T: FromBytes>(&self, offset: usize) -> Result<T, RangeError> {
        let end = self.mapping.check(offset, size_of::<T>())?;
        let memory = self.mapping.read();
        Ok(T::read_from_bytes(&memory[offset..end]).expect("the slice has the type's size"))
    }

    /// Copies bytes from `offset` on, without a Rust reference to the region: users of [`Region::as_ptr`] may
    /// be storing elsewhere in it.
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfRegion`] if the bytes do not lie in the region.
    pub fn read_into(&self, offset: usize, target: &mut [u8]) -> Result<(), RangeError> {
        self.mapping.check(offset, target.len())?;
        self.mapping.read().copy_out(offset, target);
        Ok(())
    }

    /// Stores bytes without declaring them, so that they are never logged. For a [`crate::Participant`] that
    /// restores bytes after an aborted transaction of [`crate::RestoreMode::NoRestore`].
    ///
    /// # Errors
    ///
    /// [`RangeError::OutOfRegion`] if the bytes do not lie in the region.
    pub fn put_back(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.mapping.check(offset, bytes.len())?;
        let mut memory = self.mapping.write();
        memory.copy_in(offset, bytes);
        if let Some(verifier) = self.mapping.verifier() {
            verifier.stored(&memory, offset, bytes.len());
        }
        Ok(())
    }

    /// Stores the changes of another log's record, all at once: readers that take the region's lock never see
    /// a part of it. All of them must lie in this region, and its segment must have the same number in both
    /// logs ([`Region::segment_number`]).
    ///
    /// These bytes are never logged here; [`crate::Transaction::commit_foreign`] logs them too. They do not
    /// count as stores of the program, however the region's stores are found.
    ///
    /// # Errors
    ///
    /// [`ForeignError`] if a change lies outside this region. No byte was stored.
    pub fn apply(&self, changes: &RecordChanges<'_>) -> Result<(), ForeignError> {
        self.mapping.admits(changes)?;
        self.mapping.store(&mut self.mapping.write(), changes);
        Ok(())
    }

    /// Stores like [`Region::apply`], without waiting. Returns `false`, with nothing stored, while any guard
    /// of the region is held.
    ///
    /// # Errors
    ///
    /// As [`Region::apply`].
    pub fn try_apply(&self, changes: &RecordChanges<'_>) -> Result<bool, ForeignError> {
        self.mapping.admits(changes)?;
        let Some(mut memory) = self.mapping.try_write() else {
            return Ok(false);
        };
        self.mapping.store(&mut memory, changes);
        Ok(true)
    }

    /// The segment's number in the log's records.
    pub fn segment_number(&self) -> u32 {
        self.mapping.segment.index
    }

    /// Address of the first byte, for code that synchronises its accesses by itself.
    ///
    /// A caller that dereferences it must ensure that:
    /// - the `Region` is alive;
    /// - no other thread accesses the same bytes at the same time, through guards, [`Region::get`], edits, an
    ///   abort that restores them or a commit that declared them;
    /// - no guard of this region is alive while storing.
    ///
    /// Declare the bytes with `Transaction::set_range` before storing to them.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.address.get()
    }

    /// Chooses how the region's stores are found from now on; at first they are declared. Refused while open
    /// transactions have ranges here.
    ///
    /// The change forgets stores outside of any transaction. Where stores are found by page, one transaction
    /// at a time may store to the region: from its first [`crate::Transaction::capture`], `set_range`,
    /// `write` or edit until it ends. There `set_range` has no further effect, and undeclared bytes are not
    /// an error.
    ///
    /// # Errors
    ///
    /// [`CaptureError::Uncommitted`] while open transactions have ranges here; other variants if the system
    /// or the region does not support the mode.
    pub fn set_capture(&mut self, capture: CaptureMode) -> Result<(), CaptureError> {
        // `&mut self` keeps transactions from entering during the change; those that have entered are
        // counted.
        let transactions = self.open_transactions();
        if transactions > 0 {
            return Err(CaptureError::Uncommitted { transactions });
        }
        let mapping = &*self.mapping;
        // The memory is locked before the capture state, as everywhere.
        let memory = mapping.read();
        let mut slot = lock(&mapping.capture);
        // The old mode ends before the new one begins: both protect the same pages.
        *slot = CaptureState::Declared;
        mapping.by_page.store(false, Ordering::Release);
        *slot = match capture {
            CaptureMode::Declared => return Ok(()),
            CaptureMode::Twins(find) => CaptureState::paged(PageCapture::new(&memory, Some(find), false)?),
            CaptureMode::Pages(find) => CaptureState::paged(PageCapture::new(&memory, Some(find), true)?),
            CaptureMode::Adaptive => CaptureState::paged(PageCapture::new(&memory, None, false)?),
            CaptureMode::Verified(verify) => {
                CaptureState::Verified(Arc::new(Verifier::new(&memory, verify)?))
            }
        };
        mapping.by_page.store(true, Ordering::Release);
        Ok(())
    }

    /// Takes the undeclared stores that commits have found since the last call, in a verified region.
    pub fn take_undeclared(&self) -> Vec<UndeclaredStore> {
        let verifier = self.mapping.verifier();
        let runs = verifier
            .map(|verifier| verifier.take_undeclared())
            .unwrap_or_default();
        runs.into_iter().map(|run| self.mapping.undeclared(run)).collect()
    }

    /// Undoes stores that were never declared, in a verified region. Bytes that open transactions have
    /// declared stay.
    ///
    /// # Errors
    ///
    /// [`CaptureError`] if the system cannot report which pages were stored to.
    pub fn undo_undeclared(&self) -> Result<(), CaptureError> {
        let Some(verifier) = self.mapping.verifier() else {
            return Ok(());
        };
        let undone = verifier.undo(&mut self.mapping.write());
        undone.map_err(|cause| CaptureError::System { cause })
    }

    /// Unmaps the region, or returns it when open transactions have ranges in it.
    ///
    /// # Errors
    ///
    /// [`UnmapError`] and the region, while open transactions have ranges in it.
    pub fn unmap(self) -> Result<(), (UnmapError, Region)> {
        match self.mapping.transactions.load(Ordering::Acquire) {
            0 => Ok(()),
            transactions => Err((UnmapError::Uncommitted { transactions }, self)),
        }
    }

    /// Ends the region but leaves its bytes mapped for the rest of the process's life, as the original's
    /// `rvm_unmap` did. Returns the region when open transactions have ranges in it.
    ///
    /// Pages that were stored to stay as they are now. The others continue to show the segment file,
    /// including later changes, and reading them is fatal (SIGBUS) once the file is shortened. The address
    /// range is never released.
    ///
    /// # Errors
    ///
    /// As [`Region::unmap`].
    pub fn keep_unmapped(self) -> Result<(), (UnmapError, Region)> {
        match self.mapping.transactions.load(Ordering::Acquire) {
            0 => {
                // The memory must not keep protected pages.
                *lock(&self.mapping.capture) = CaptureState::Declared;
                self.mapping.write().keep();
                Ok(())
            }
            transactions => Err((UnmapError::Uncommitted { transactions }, self)),
        }
    }
}
