//! Heaps in segments of the loader: the heap at its address, directly followed by static data.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::PoisonError;

use netram_heap::Heap;
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode};

use super::{HEAP, RdsError, idle, start_with};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::LIBRARY;
use crate::registered_pages::PAGE;
use crate::segment::{LoaderSegment, RegionDefinition};

/// Bytes of static data that are cleared in one transaction, so that it fits a record of the smallest useful
/// log.
const CLEAR_STEP: usize = 2048;

/// Parameters of `rds_zap_heap`.
pub(crate) struct ZapRequest<'a> {
    pub(crate) path: &'a Path,
    pub(crate) device_length: u64,
    pub(crate) start: usize,
    pub(crate) heap_bytes: u64,
    pub(crate) static_bytes: u64,
}

/// `rds_zap_heap`: makes an empty heap and zeroed static data, replacing earlier content.
pub(crate) fn zap(zap: &ZapRequest<'_>) -> Result<(), RdsError> {
    LIBRARY.ready()?;
    refuse_mapped(zap.path)?;
    let heap_bytes = pages(zap.heap_bytes)?;
    let heap = RegionDefinition {
        offset: 0,
        length: heap_bytes,
        address: zap.start,
    };
    let statics = RegionDefinition {
        offset: 0,
        length: pages(zap.static_bytes)?,
        address: zap.start.wrapping_add(heap_bytes),
    };
    let segment = LoaderSegment {
        path: zap.path,
        device_length: zap.device_length,
    };
    LIBRARY.create_segment(&segment, None, &mut [heap, statics])?;
    let loaded = LIBRARY.load_segment(&segment, None)?;
    let made = fill(&loaded);
    let applied = made.and_then(|()| {
        LIBRARY.flush()?;
        Ok(LIBRARY.truncate()?)
    });
    LIBRARY.release_segment(&loaded)?;
    applied
}

/// Refuses a mapped segment, whose header must stay: another header would not match the mapped content.
fn refuse_mapped(path: &Path) -> Result<(), RdsError> {
    let file = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    // The caller reports a missing file.
    let Ok(wanted) = file(path) else { return Ok(()) };
    let regions = LIBRARY.with_log(|log| Ok(log.memory.query().regions))?;
    let mapped = regions
        .iter()
        .any(|region| file(Path::new(&region.path)).is_ok_and(|found| found == wanted));
    match mapped {
        false => Ok(()),
        true => {
            let text = format!(
                "{} is mapped; unload it, or unmap its regions, first",
                path.display()
            );
            Err(CallFailure::new(ReturnCode::Overlap, text).into())
        }
    }
}

fn fill(loaded: &[RegionDefinition]) -> Result<(), RdsError> {
    let [heap, statics] = two(loaded)?;
    let mapped = LIBRARY.regions.find(heap.address, heap.length);
    let mapped = mapped.ok_or_else(|| super::not_mapped(heap.address))?;
    let data = LIBRARY.regions.find(statics.address, statics.length);
    let data = data.ok_or_else(|| super::not_mapped(statics.address))?;
    LIBRARY.with_log(|log| {
        let formatted = Heap::format_part(&log.memory, &mapped.region, 0, heap.length);
        Ok(formatted.map_err(RdsError::from))
    })??;
    clear(&data.region)
}

/// Zeroes the bytes that are not zero.
fn clear(region: &Region) -> Result<(), RdsError> {
    let mut bytes = [0; CLEAR_STEP];
    for from in (0..region.len()).step_by(CLEAR_STEP) {
        let bytes = &mut bytes[..CLEAR_STEP.min(region.len() - from)];
        region.read_into(from, bytes).map_err(CallFailure::from)?;
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        bytes.fill(0);
        let mut step = LIBRARY.with_log(|log| Ok(log.memory.begin(RestoreMode::Restore)))?;
        step.write(region, from, bytes).map_err(CallFailure::from)?;
        step.commit(Durability::Lazy).map_err(CallFailure::from)?;
    }
    Ok(())
}

/// `rds_load_heap`: returns the address of the static data, and the loaded regions.
pub(crate) fn load(path: &Path, device_length: u64) -> Result<(usize, Vec<RegionDefinition>), RdsError> {
    LIBRARY.ready()?;
    if HEAP.read().unwrap_or_else(PoisonError::into_inner).is_some() {
        return Err(RdsError::started_already());
    }
    let segment = LoaderSegment { path, device_length };
    let loaded = LIBRARY.load_segment(&segment, None)?;
    let begun = two(&loaded).and_then(|[heap, statics]| {
        start_with(heap.address, loaded.clone())?;
        Ok(statics.address)
    });
    match begun {
        Ok(statics) => Ok((statics, loaded)),
        Err(refusal) => {
            LIBRARY.release_segment(&loaded)?;
            Err(refusal)
        }
    }
}

/// `rds_unload_heap`: applies everything to the segment's file and releases its memory.
pub(crate) fn unload() -> Result<Vec<RegionDefinition>, RdsError> {
    let _setup = LIBRARY.setup()?;
    let mut current = HEAP.write().unwrap_or_else(PoisonError::into_inner);
    let heap = idle(&mut current)?;
    let (segment, region) = (heap.segment.clone(), heap.region);
    if segment.is_empty() {
        return Err(RdsError::segment(
            "the heap was started, not loaded; stop it with rds_stop_heap",
        ));
    }
    for region in &segment {
        let open = LIBRARY.transactions.list(Some(region.address)).len();
        if open > 0 {
            let text = format!("{open} open transactions use the heap; end them first");
            return Err(CallFailure::new(ReturnCode::Uncommitted, text).into());
        }
    }
    LIBRARY.flush()?;
    LIBRARY.truncate()?;
    // The heap keeps its region mapped. It is dropped only after everything that can fail.
    LIBRARY.release(&segment, Some(region), || *current = None)?;
    Ok(segment)
}

/// The region of the heap and that of the static data.
fn two(loaded: &[RegionDefinition]) -> Result<[RegionDefinition; 2], RdsError> {
    <[RegionDefinition; 2]>::try_from(loaded).map_err(|_| {
        RdsError::segment(format!(
            "the segment has {} regions instead of a heap's two; it was not made by rds_zap_heap",
            loaded.len()
        ))
    })
}

fn pages(bytes: u64) -> Result<usize, RdsError> {
    let whole = usize::try_from(bytes.max(1)).ok();
    let whole = whole.and_then(|bytes| bytes.checked_next_multiple_of(PAGE));
    whole.ok_or_else(|| RdsError::new(super::BAD_ARGS, format!("{bytes} bytes exceed the address space")))
}
