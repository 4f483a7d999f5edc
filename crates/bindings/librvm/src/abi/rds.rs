//! The functions of `rds.h` that change the heap.

use std::ffi::{c_char, c_int, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::ptr::{null_mut, without_provenance_mut};
use std::slice;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use netram_proto::port::Durability;

use super::calls::{durability, handle};
use super::cancel::uncancelled;
use super::rds_report::trace;
use super::segments::{bytes_of, to_record};
use super::{heap, is_usable, memory, name, put};
use crate::code::ReturnCode;
use crate::failure::{CallFailure, remember};
use crate::rds::{self, BAD_ARGS, RdsError, ZapRequest};
use crate::record::{Length, OffsetRecord, RegionDefRecord, TidRecord};
use crate::segment::RegionDefinition;
use crate::transactions::ObjectHandle;

/// `ERVM_FAILED`: an internal error of the library.
const RVM_FAILED: c_int = -1;
/// Bytes of an intention list's first table, as in the original.
const TABLE_BYTES: usize = 128;

/// The regions of the loaded heap.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static RegionDefs: AtomicPtr<RegionDefRecord> = AtomicPtr::new(null_mut());

/// Number of these regions.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static NRegionDefs: AtomicU64 = AtomicU64::new(0);

/// A switch of the original's tests. Programs set it, but nothing reads it.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rds_testsw: AtomicI32 = AtomicI32::new(0);

/// `intentionList_t`.
#[derive(Clone, Copy)]
#[repr(C)]
struct IntentionList {
    /// Number of addresses for which the table has room.
    size: c_ulong,
    count: c_ulong,
    table: *mut *mut c_void,
}

/// Runs a call. Nothing unwinds into C, the thread is not cancelled inside, and the failure is stored for
/// `rvm_error_text`.
pub(super) fn attempt<T>(call: impl FnOnce() -> Result<T, RdsError>) -> Result<T, c_int> {
    match uncancelled(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(refusal)) => {
            remember(&refusal.failure);
            super::set_errno(refusal.failure.errno);
            Err(refusal.code)
        }
        Err(_) => {
            remember(&CallFailure::new(
                ReturnCode::Internal,
                "an internal error of the library, printed on stderr; please report it, then terminate and start the program again",
            ));
            Err(RVM_FAILED)
        }
    }
}

/// Stores the code; the function's own result is 0 or -1.
pub(super) fn answer(call: Result<(), c_int>, error: *mut c_int) -> c_int {
    tell(error, call.err().unwrap_or(0));
    if call.is_ok() { 0 } else { -1 }
}

fn tell(error: *mut c_int, code: c_int) {
    if is_usable(error) {
        put(error, code);
    }
}

/// A transaction's handle; NULL requests a transaction of the call's own.
fn tid_if_any(tid: *const TidRecord) -> Result<Option<ObjectHandle>, RdsError> {
    match tid.is_null() {
        true => Ok(None),
        false => Ok(Some(handle(tid)?)),
    }
}

fn device(device: *const c_char, length: OffsetRecord) -> Result<(PathBuf, u64), RdsError> {
    let path = name(device).ok_or_else(|| RdsError::new(BAD_ARGS, "the segment's name is NULL"))?;
    match length.high {
        0 => Ok((path, length.low)),
        _ => Err(RdsError::new(BAD_ARGS, "the segment's length exceeds 64 bits")),
    }
}

/// Checks the parameters of the original's free lists, which have no effect here.
fn check_shape(lists: c_ulong, chunk: c_ulong) -> Result<(), RdsError> {
    match lists > 0 && chunk > 0 {
        true => Ok(()),
        false => Err(RdsError::new(
            BAD_ARGS,
            "a heap needs at least one list and chunks of at least one byte",
        )),
    }
}

#[unsafe(no_mangle)]
extern "C" fn rds_zap_heap(
    dev: *const c_char,
    dev_length: OffsetRecord,
    start: *mut c_void,
    static_length: Length,
    heap_length: Length,
    lists: c_ulong,
    chunk: c_ulong,
    error: *mut c_int,
) -> c_int {
    let zapped = attempt(|| {
        check_shape(lists, chunk)?;
        let (path, device_length) = device(dev, dev_length)?;
        rds::zap(&ZapRequest {
            path: &path,
            device_length,
            start: start.addr(),
            heap_bytes: heap_length,
            static_bytes: static_length,
        })
    });
    answer(zapped, error)
}

#[unsafe(no_mangle)]
extern "C" fn rds_init_heap(
    base: *mut c_void,
    length: Length,
    chunk: c_ulong,
    lists: c_ulong,
    tid: *const TidRecord,
    error: *mut c_int,
) -> c_int {
    let made = attempt(|| {
        check_shape(lists, chunk)?;
        rds::init(base.addr(), length as usize, tid_if_any(tid)?)
    });
    answer(made, error)
}

#[unsafe(no_mangle)]
extern "C" fn rds_load_heap(
    dev: *const c_char,
    dev_length: OffsetRecord,
    statics: *mut *mut c_char,
    error: *mut c_int,
) -> c_int {
    let loaded = attempt(|| {
        let (path, device_length) = device(dev, dev_length)?;
        let (data, regions) = rds::load(&path, device_length)?;
        let lowest = regions.iter().map(|region| region.address).min();
        memory::loaded(bytes_of(&regions), lowest.unwrap_or_default());
        tell_regions(&regions);
        if is_usable(statics) {
            put(statics, without_provenance_mut(data));
        }
        Ok(())
    });
    answer(loaded, error)
}

/// Always returns -1, as the original does.
#[unsafe(no_mangle)]
extern "C" fn rds_unload_heap(error: *mut c_int) -> c_int {
    let unloaded = attempt(|| {
        let regions = rds::unload()?;
        memory::released(bytes_of(&regions));
        tell_regions(&[]);
        Ok(())
    });
    answer(unloaded, error);
    -1
}

/// Always returns -1, as the original does.
#[unsafe(no_mangle)]
extern "C" fn rds_start_heap(base: *mut c_void, error: *mut c_int) -> c_int {
    answer(attempt(|| rds::start(base.addr())), error);
    -1
}

/// Always returns -1, as the original does.
#[unsafe(no_mangle)]
extern "C" fn rds_stop_heap(error: *mut c_int) -> c_int {
    answer(attempt(rds::stop), error);
    -1
}

#[unsafe(no_mangle)]
extern "C" fn rds_malloc(size: Length, tid: *const TidRecord, error: *mut c_int) -> *mut c_char {
    let got = attempt(|| rds::malloc(size, tid_if_any(tid)?));
    trace(|| format!("malloc {size}: {}", outcome(&got)));
    tell(error, got.err().unwrap_or(0));
    got.map_or(null_mut(), without_provenance_mut)
}

#[unsafe(no_mangle)]
extern "C" fn rds_prealloc(size: Length, count: c_ulong, tid: *const TidRecord, error: *mut c_int) -> c_int {
    let prepared = attempt(|| rds::prealloc(size, count, tid_if_any(tid)?));
    trace(|| format!("prealloc {count} of {size}: {}", prepared.err().unwrap_or(0)));
    answer(prepared, error)
}

#[unsafe(no_mangle)]
extern "C" fn rds_free(address: *mut c_void, tid: *const TidRecord, error: *mut c_int) -> c_int {
    let freed = attempt(|| rds::free(address.addr(), tid_if_any(tid)?));
    trace(|| format!("free {address:p}: {}", freed.err().unwrap_or(0)));
    answer(freed, error)
}

#[unsafe(no_mangle)]
extern "C" fn rds_maxblock(size: c_ulong) -> c_int {
    attempt(|| rds::has_room(size)).is_ok_and(|has| has).into()
}

#[unsafe(no_mangle)]
extern "C" fn rds_fake_free(address: *mut c_void, list: *mut IntentionList) -> c_int {
    let noted = attempt(|| {
        if !is_usable(list) {
            return Err(RdsError::new(
                BAD_ARGS,
                "the pointer to the intention list is NULL or misaligned",
            ));
        }
        rds::check(address.addr())?;
        // SAFETY: it is neither NULL nor misaligned, and the header requires a list.
        let mut intentions = unsafe { list.read() };
        grow(&mut intentions)?;
        // SAFETY: `grow` ensured that the table has room for one more.
        let element = unsafe { intentions.table.add(intentions.count as usize) };
        put(element, address);
        intentions.count += 1;
        put(list, intentions);
        Ok(())
    });
    trace(|| format!("fake free {address:p}: {}", noted.err().unwrap_or(0)));
    noted.err().unwrap_or(0)
}

/// Makes room in the table for one more address.
fn grow(list: &mut IntentionList) -> Result<(), RdsError> {
    let room = if list.table.is_null() {
        0
    } else {
        list.size as usize
    };
    if (list.count as usize) < room {
        return Ok(());
    }
    let first = TABLE_BYTES / size_of::<*mut c_void>();
    let wanted = room.saturating_mul(2).max(first);
    let bytes = wanted.saturating_mul(size_of::<*mut c_void>());
    // SAFETY: the table is NULL or was allocated here; the C library checks the size.
    let table = unsafe { libc::realloc(list.table.cast(), bytes) };
    if table.is_null() {
        return Err(CallFailure::new(ReturnCode::NoMemory, "no memory for the intention list").into());
    }
    *list = IntentionList {
        size: wanted as c_ulong,
        count: if room == 0 { 0 } else { list.count },
        table: table.cast(),
    };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn rds_do_free(list: *mut IntentionList, mode: c_int) -> c_int {
    let freed = attempt(|| {
        if !is_usable(list) {
            return Err(RdsError::new(
                BAD_ARGS,
                "the pointer to the intention list is NULL or misaligned",
            ));
        }
        let durability: Durability = durability(mode)?;
        // SAFETY: it is neither NULL nor misaligned, and the header requires a list.
        let intentions = unsafe { list.read() };
        if !intentions.table.is_null() {
            // SAFETY: `rds_fake_free` stored this many addresses there.
            let table = unsafe { slice::from_raw_parts(intentions.table, intentions.count as usize) };
            let addresses: Vec<usize> = table.iter().map(|address| address.addr()).collect();
            rds::free_all(&addresses, durability)?;
            heap::release(intentions.table);
        }
        put(
            list,
            IntentionList {
                size: 0,
                count: 0,
                table: null_mut(),
            },
        );
        Ok(())
    });
    trace(|| format!("do free: {}", freed.err().unwrap_or(0)));
    freed.err().unwrap_or(0)
}

fn outcome(got: &Result<usize, c_int>) -> String {
    match got {
        Ok(address) => format!("{address:#x}"),
        Err(code) => format!("error {code}"),
    }
}

/// Publishes the heap's regions to programs.
fn tell_regions(regions: &[RegionDefinition]) {
    let records: Vec<RegionDefRecord> = regions.iter().map(to_record).collect();
    // Without memory for the array no region is published.
    let array = heap::array(&records).unwrap_or(null_mut());
    let count = if array.is_null() { 0 } else { records.len() };
    NRegionDefs.store(count as u64, Ordering::SeqCst);
    heap::release(RegionDefs.swap(array, Ordering::SeqCst));
}
