//! The persistent heap of `rds.h`: one per process, over `netram-heap`.
//!
//! | module | does |
//! |---|---|
//! | here | starting, stopping, allocating, freeing |
//! | `segment` | heaps in segments of the loader: creating, loading, unloading |
//! | `report` | statistics and listings |
//! | `refusal` | its error codes |
//!
//! The layout in the segment is netram's own (`docs/design/heap.md`), not the original's; a heap of the
//! original has another version and is refused.

mod refusal;
mod report;
mod segment;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use netram_heap::{Heap, HeapCounts, Ptr};
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode};
use netram_store::JournaledTransaction;

pub(crate) use refusal::{BAD_ARGS, RdsError};
pub(crate) use report::{RdsFigures, listing, report};
pub(crate) use segment::{ZapRequest, load, unload, zap};

use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::LIBRARY;
use crate::regions::MappedRegion;
use crate::segment::RegionDefinition;
use crate::transactions::ObjectHandle;

/// The process's heap, from start to stop.
static HEAP: RwLock<Option<Arc<StartedHeap>>> = RwLock::new(None);

/// A started heap.
pub(crate) struct StartedHeap {
    heap: Heap,
    /// The address of the heap's first byte.
    base: usize,
    /// Address at which its region begins.
    region: usize,
    /// Regions that were loaded for it; empty if the program mapped its memory itself.
    segment: Vec<RegionDefinition>,
    /// Counters at the last clearing.
    cleared: Mutex<HeapCounts>,
    prepared: AtomicU64,
}

impl AsRef<Region> for MappedRegion {
    fn as_ref(&self) -> &Region {
        &self.region
    }
}

impl StartedHeap {
    /// The heap's pointer for an address, which may be arbitrary.
    fn pointer(&self, address: usize) -> Result<Ptr<u8>, RdsError> {
        match address.checked_sub(self.base) {
            Some(offset) => Ok(Ptr::from_offset(offset as u64)),
            None => Err(RdsError::outside(address)),
        }
    }

    /// Upper bound of the address behind the heap's last byte.
    fn end(&self) -> usize {
        self.region + self.heap.region().len()
    }

    fn address(&self, block: Ptr<u8>) -> usize {
        self.base + block.offset() as usize
    }
}

/// The heap, if one has been started and the library is running.
fn started() -> Result<Arc<StartedHeap>, RdsError> {
    let heap = HEAP.read().unwrap_or_else(PoisonError::into_inner).clone();
    let heap = heap.ok_or_else(RdsError::no_heap)?;
    LIBRARY.ready()?;
    Ok(heap)
}

/// Opens the heap at an address as the process's heap.
fn start_with(base: usize, segment: Vec<RegionDefinition>) -> Result<(), RdsError> {
    // Held while the heap's bytes are read: another heap over them could change them.
    let mut current = HEAP.write().unwrap_or_else(PoisonError::into_inner);
    // A thread that ends the library first sets its phase, then removes the heap, and so finds this one.
    LIBRARY.ready()?;
    if current.is_some() {
        return Err(RdsError::started_already());
    }
    let mapped = LIBRARY.regions.find(base, 0).ok_or_else(|| not_mapped(base))?;
    let (region, offset) = (mapped.start, base - mapped.start);
    let heap = Heap::open_in(mapped, offset, usize::MAX)?;
    *current = Some(Arc::new(StartedHeap {
        heap,
        base,
        region,
        segment,
        cleared: Mutex::default(),
        prepared: AtomicU64::new(0),
    }));
    Ok(())
}

/// `rds_start_heap`.
pub(crate) fn start(base: usize) -> Result<(), RdsError> {
    LIBRARY.ready()?;
    start_with(base, Vec::new())
}

/// `rds_stop_heap`.
pub(crate) fn stop() -> Result<(), RdsError> {
    let mut current = HEAP.write().unwrap_or_else(PoisonError::into_inner);
    idle(&mut current)?;
    *current = None;
    Ok(())
}

/// The heap, if no call in another thread uses it: that call would continue in bytes that may then belong to
/// another heap. No call can begin while `HEAP` is held.
fn idle(current: &mut Option<Arc<StartedHeap>>) -> Result<&StartedHeap, RdsError> {
    let heap = current.as_mut().ok_or_else(RdsError::no_heap)?;
    LIBRARY.ready()?;
    match Arc::get_mut(heap) {
        Some(started) => Ok(started),
        None => Err(RdsError::in_use()),
    }
}

/// Removes the heap, whoever ends the library.
pub(crate) fn forget() {
    *HEAP.write().unwrap_or_else(PoisonError::into_inner) = None;
}

/// `rds_init_heap`.
pub(crate) fn init(base: usize, length: usize, tid: Option<ObjectHandle>) -> Result<(), RdsError> {
    LIBRARY.ready()?;
    let mapped = LIBRARY
        .regions
        .find(base, length)
        .ok_or_else(|| not_mapped(base))?;
    if let Some(started) = &*HEAP.read().unwrap_or_else(PoisonError::into_inner)
        && started.region == mapped.start
        && base < started.end()
        && started.base < base.saturating_add(length)
    {
        return Err(RdsError::started_already());
    }
    within(tid, mapped.start, |transaction| {
        Heap::format_in(transaction, &mapped.region, base - mapped.start, length)?;
        Ok(())
    })
}

/// `rds_malloc`.
pub(crate) fn malloc(size: u64, tid: Option<ObjectHandle>) -> Result<usize, RdsError> {
    let started = started()?;
    let block = within(tid, started.region, |transaction| {
        Ok(started.heap.allocate(transaction, bytes(size))?)
    })?;
    Ok(started.address(block))
}

/// `rds_prealloc`.
pub(crate) fn prealloc(size: u64, count: u64, tid: Option<ObjectHandle>) -> Result<(), RdsError> {
    let started = started()?;
    within(tid, started.region, |transaction| {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        Ok(started.heap.prepare(transaction, bytes(size), count)?)
    })?;
    started
        .prepared
        .fetch_add(count, std::sync::atomic::Ordering::Relaxed);
    Ok(())
}

/// `rds_free`.
pub(crate) fn free(address: usize, tid: Option<ObjectHandle>) -> Result<(), RdsError> {
    let started = started()?;
    let block = started.pointer(address)?;
    within(tid, started.region, |transaction| {
        Ok(started.heap.free(transaction, block)?)
    })
}

/// `rds_fake_free`: checks whether the block could be freed.
pub(crate) fn check(address: usize) -> Result<(), RdsError> {
    let started = started()?;
    started.heap.block_bytes(started.pointer(address)?)?;
    Ok(())
}

/// `rds_do_free`: frees all blocks or none.
pub(crate) fn free_all(addresses: &[usize], durability: Durability) -> Result<(), RdsError> {
    let started = started()?;
    own(durability, |transaction| {
        for address in addresses {
            started.heap.free(transaction, started.pointer(*address)?)?;
        }
        Ok(())
    })
}

/// `rds_maxblock`.
pub(crate) fn has_room(size: u64) -> Result<bool, RdsError> {
    Ok(started()?.heap.has_room(bytes(size))?)
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Calls `act` in the program's transaction, or in a new one that is committed without flushing.
fn within<R>(
    tid: Option<ObjectHandle>,
    region: usize,
    work: impl FnOnce(&mut JournaledTransaction) -> Result<R, RdsError>,
) -> Result<R, RdsError> {
    match tid {
        None => own(Durability::Lazy, work),
        Some(handle) => LIBRARY.transactions.with(handle, |open| {
            open.touch(region);
            Ok(work(&mut open.transaction))
        })?,
    }
}

/// Calls `act` in a transaction of its own. After an error nothing is changed.
fn own<R>(
    durability: Durability,
    work: impl FnOnce(&mut JournaledTransaction) -> Result<R, RdsError>,
) -> Result<R, RdsError> {
    let mut transaction = LIBRARY.with_log(|log| Ok(log.memory.begin(RestoreMode::Restore)))?;
    let result = work(&mut transaction)?;
    transaction.commit(durability).map_err(CallFailure::from)?;
    Ok(result)
}

fn not_mapped(base: usize) -> RdsError {
    RdsError::from(CallFailure::new(
        ReturnCode::NotMapped,
        format!("the heap's bytes at {base:#x} are not all in one mapped region; map it first"),
    ))
}
