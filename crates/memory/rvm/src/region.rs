//! A mapped part of a segment.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use zerocopy::FromBytes;

use crate::capture::{CaptureMode, PageCapture, Twins, UndeclaredStore, Verifier};
use crate::error::{CaptureError, ForeignError, RangeError, UnmapError};
use crate::limit::COPY_BYTES;
use crate::memory::{RegionAddress, RegionMemory};
use crate::record::{RangeView, RecordChanges, RecordScope};
use crate::segments::SegmentMark;
use crate::sync::lock;

/// A mapped part of a segment: memory that survives crashes, as far as transactions committed it.
///
/// Reading takes the region's lock shared, changing takes it exclusively, for as long as a guard lives. Hold
/// at most one guard at a time, and none across a commit: a commit takes the locks of all its regions. The
/// lock protects memory, not meaning: RVM does not detect conflicts between transactions, by design.
///
/// Dropping a region unmaps it as soon as no open transaction holds ranges in it. What was committed is safe;
/// stores outside a committed range are forgotten.
#[derive(Debug)]
pub struct Region {
    pub(crate) mapping: Arc<RegionMapping>,
}

/// What a region and the transactions that touch it share.
#[derive(Debug)]
pub(crate) struct RegionMapping {
    // Before the memory, whose pages it has protected.
    capture: Mutex<CaptureState>,
    /// The slot is not `Declared`: what a transaction asks first.
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
    /// The `Rvm` it belongs to.
    pub(crate) owner: u64,
}

/// Who has what finds a region's stores by page.
#[derive(Debug)]
enum CaptureState {
    /// There is nothing to have.
    Declared,
    /// One transaction at a time; `None`: one has it now. Foreign records need the twins meanwhile.
    Paged {
        twins: Arc<Twins>,
        free: Option<Box<PageCapture>>,
    },
    /// All of them.
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

/// What a transaction gets from a region that it enters.
#[derive(Debug)]
pub(crate) enum CaptureLoan {
    /// Stores are declared.
    Nothing,
    Capture(Box<PageCapture>),
    Verifier(Arc<Verifier>),
}

impl RegionMapping {
    /// Takes what finds the region's stores by page, for one transaction; or shares what verifies them.
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

    /// Whether its stores are found by page, where a page does not say who stored.
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

    /// What a run of bytes that was not declared is, for people.
    pub(crate) fn undeclared(&self, (offset, length): (usize, usize)) -> UndeclaredStore {
        UndeclaredStore {
            segment: self.path.clone(),
            offset: self.base + offset as u64,
            region_offset: offset,
            length,
            address: self.address() + offset,
        }
    }

    /// Gives back what a transaction borrowed.
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

    // A panic while a guard was held says nothing about the bytes: the transaction's drop restores them, if
    // it was to. So poisoning is passed over.
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
    /// Whether a record's changes all lie here.
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

/// Exclusive access to a region's bytes, across many changes: nobody else reads or changes any meanwhile.
///
/// It can be read; what is stored goes through a transaction, [`crate::Transaction::write_in`]. Unlike an
/// [edit](crate::Transaction::edit) it borrows none, so that both can be kept in one value.
#[derive(Debug)]
pub struct ExclusiveGuard<'r> {
    pub(crate) region: &'r Region,
    pub(crate) memory: RwLockWriteGuard<'r, RegionMemory>,
}

impl ExclusiveGuard<'_> {
    /// The region whose bytes these are.
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

    /// The region's bytes, kept from changing until the guard is dropped.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard(self.mapping.read())
    }

    /// The region's bytes, for nobody else until the guard is dropped.
    pub fn exclusive(&self) -> ExclusiveGuard<'_> {
        ExclusiveGuard {
            region: self,
            memory: self.mapping.write(),
        }
    }

    /// A copy of the value at `offset`, which need not be aligned.
    pub fn get<T: FromBytes>(&self, offset: usize) -> Result<T, RangeError> {
        let end = self.mapping.check(offset, size_of::<T>())?;
        let memory = self.mapping.read();
        Ok(T::read_from_bytes(&memory[offset..end]).expect("the slice has the type's size"))
    }

    /// Copies bytes from `offset` on, without a Rust reference to the region: users of [`Region::as_ptr`] may
    /// be storing elsewhere in it.
    pub fn read_into(&self, offset: usize, target: &mut [u8]) -> Result<(), RangeError> {
        self.mapping.check(offset, target.len())?;
        self.mapping.read().copy_out(offset, target);
        Ok(())
    }

    /// Stores bytes without declaring them: for a [`crate::Participant`] that puts back what an aborted
    /// transaction of [`crate::RestoreMode::NoRestore`] left. Bytes stored like this are never logged.
    pub fn put_back(&self, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.mapping.check(offset, bytes.len())?;
        let mut memory = self.mapping.write();
        memory.copy_in(offset, bytes);
        if let Some(verifier) = self.mapping.verifier() {
            verifier.stored(&memory, offset, bytes.len());
        }
        Ok(())
    }

    /// Stores what a record of another log's says, all at once: nobody who reads the region through its lock
    /// sees a part of it. Refused, with nothing changed, unless all of it lies in this region, whose segment
    /// has the same number there as here ([`Region::segment_number`]).
    ///
    /// Bytes stored like this are never logged here; [`crate::Transaction::commit_foreign`] logs them too.
    /// However the region's stores are found, these do not count as the program's.
    pub fn apply(&self, changes: &RecordChanges<'_>) -> Result<(), ForeignError> {
        self.mapping.admits(changes)?;
        self.mapping.store(&mut self.mapping.write(), changes);
        Ok(())
    }

    /// The same, unless somebody has a guard of the region just now: then nothing is stored, and it says
    /// `false`. For who may not wait.
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

    /// The address of the first byte, for code that keeps its own discipline.
    ///
    /// Whoever dereferences it vouches that: the `Region` is alive; no other thread reads or writes the same
    /// bytes meanwhile, through guards, [`Region::get`], edits, an abort that restores them or a commit that
    /// declared them; and no guard of this region is alive while storing. Declare the bytes with
    /// `Transaction::set_range` before storing to them.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.address.get()
    }

    /// Chooses how the region's stores are found from now on: at first they are declared. Refused while open
    /// transactions have ranges here.
    ///
    /// Stores outside of any transaction are forgotten by the choice. Where stores are found by page, one
    /// transaction at a time may store to the region: it has it from its first
    /// [`crate::Transaction::capture`], `set_range`, `write` or edit until it ends. `set_range` declares
    /// nothing more there, and no bytes are refused for being undeclared.
    pub fn set_capture(&mut self, capture: CaptureMode) -> Result<(), CaptureError> {
        // `&mut self` keeps transactions from entering meanwhile; those that have are counted.
        let transactions = self.open_transactions();
        if transactions > 0 {
            return Err(CaptureError::Uncommitted { transactions });
        }
        let mapping = &*self.mapping;
        // Before the slot, as everywhere.
        let memory = mapping.read();
        let mut slot = lock(&mapping.capture);
        // The old one ends before the new one begins: they protect the same pages.
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

    /// The undeclared stores that commits have found since the last call, where the region is verified.
    pub fn take_undeclared(&self) -> Vec<UndeclaredStore> {
        let verifier = self.mapping.verifier();
        let runs = verifier
            .map(|verifier| verifier.take_undeclared())
            .unwrap_or_default();
        runs.into_iter().map(|run| self.mapping.undeclared(run)).collect()
    }

    /// Puts back what was stored and never declared, where the region is verified; what open transactions
    /// have declared stays.
    pub fn undo_undeclared(&self) -> Result<(), CaptureError> {
        let Some(verifier) = self.mapping.verifier() else {
            return Ok(());
        };
        let undone = verifier.undo(&mut self.mapping.write());
        undone.map_err(|cause| CaptureError::System { cause })
    }

    /// Unmaps the region; hands it back when open transactions hold ranges in it.
    pub fn unmap(self) -> Result<(), (UnmapError, Region)> {
        match self.mapping.transactions.load(Ordering::Acquire) {
            0 => Ok(()),
            transactions => Err((UnmapError::Uncommitted { transactions }, self)),
        }
    }

    /// Unmaps the region as far as recoverable memory is concerned, and leaves its bytes where they are for
    /// the rest of the process's life, as the original's `rvm_unmap` did; hands the region back when open
    /// transactions hold ranges in it.
    ///
    /// Pages that were stored to stay as they are now. The others go on showing the segment file, what later
    /// transactions change in it too, and reading them is fatal (SIGBUS) once the file is cut shorter. The
    /// address range is never given back.
    pub fn keep_unmapped(self) -> Result<(), (UnmapError, Region)> {
        match self.mapping.transactions.load(Ordering::Acquire) {
            0 => {
                // No page stays protected.
                *lock(&self.mapping.capture) = CaptureState::Declared;
                self.mapping.write().keep();
                Ok(())
            }
            transactions => Err((UnmapError::Uncommitted { transactions }, self)),
        }
    }
}
