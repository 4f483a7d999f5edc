//! The functions of `rvm.h`, except for records and offsets.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::without_provenance_mut;

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;

use super::{guarded, guarded_in_memory, heap, is_usable, is_version, name, put, record};
use crate::code::{ReturnCode, code_name, mode_name, type_name};
use crate::failure::CallFailure;
use crate::library::{COALESCE_TRANS, LIBRARY};
use crate::log::{LibraryOptions, NewLog};
use crate::mapping::MapRequest;
use crate::record::{CRecord, Length, OffsetRecord, OptionsRecord, RegionRecord, TidRecord};
use crate::transactions::{CallEnd, ObjectHandle, TransactionInfo};

/// `RVM_VERSION`.
const VERSION: &CStr = c"RVM Interface Version 1.3  7 Mar 1994";

const RESTORE: c_int = 140;
const NO_RESTORE: c_int = 141;
const FLUSH: c_int = 142;
const NO_FLUSH: c_int = 143;

const COALESCE_RANGES: u64 = 1;
/// Unit to which the original rounds lengths down.
const SECTOR: u64 = 512;
/// Smallest recovery buffer that the original accepts.
const RECOVERY_BUFFER_MIN: u64 = 64 * 1024;

#[unsafe(no_mangle)]
extern "C" fn rvm_initialize(version: *const c_char, options: *const OptionsRecord) -> c_int {
    guarded(|| {
        if !is_version(version, VERSION) {
            return Err(CallFailure::new(
                ReturnCode::VersionSkew,
                "the program was compiled with another version of rvm.h; compile it with this library's",
            ));
        }
        LIBRARY.initialize(choices_if_any(options)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_terminate() -> c_int {
    guarded(|| LIBRARY.terminate())
}

#[unsafe(no_mangle)]
extern "C" fn rvm_set_options(options: *const OptionsRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        LIBRARY.set_options(choices(options)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_query(options: *mut OptionsRecord, region: *const RegionRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let mut asked = record(options).ok_or_else(no_options)?;
        let region = match region.is_null() {
            true => None,
            false => {
                let region = record(region).ok_or_else(no_region)?;
                Some((region.vmaddr.addr(), region.length as usize))
            }
        };
        let answer = LIBRARY.query(region)?;
        let listed: Vec<TidRecord> = answer.open.iter().map(tid_of).collect();
        let array = heap::array(&listed).ok_or_else(|| {
            CallFailure::new(ReturnCode::NoMemory, "no memory to list the open transactions")
        })?;
        let choices = &answer.choices;
        asked.truncate = choices.truncate;
        asked.recovery_buf_len = choices.recovery_buffer;
        asked.flush_buf_len = choices.flush_buffer;
        asked.max_read_len = choices.read;
        asked.flags = choices.flags;
        asked.log_empty = answer.log_empty.into();
        asked.n_uncommit = listed.len() as c_long;
        // The previous array belongs to the program, which may have freed it; this cannot be detected here.
        asked.tid_array = array;
        if !asked.log_dev.is_null() {
            put_name(asked.log_dev, answer.log_name.as_deref().unwrap_or_default());
        }
        put(options, asked);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_map(region: *mut RegionRecord, options: *const OptionsRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let mut wanted = record(region).ok_or_else(no_region)?;
        let choices = choices_if_any(options)?;
        let request = map_request(&wanted)?;
        let got = LIBRARY.map(&request, choices)?;
        wanted.offset = OffsetRecord {
            high: 0,
            low: got.offset,
        };
        wanted.length = got.length as Length;
        wanted.vmaddr = without_provenance_mut(got.address);
        put(region, wanted);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_unmap(region: *const RegionRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let region = record(region).ok_or_else(no_region)?;
        LIBRARY.unmap(region.vmaddr.addr(), region.length as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_begin_transaction(tid: *mut TidRecord, mode: c_int) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let mut begun = record(tid).ok_or_else(no_tid)?;
        let (handle, uname) = LIBRARY.begin(restoring(mode)?)?;
        begun.tid = without_provenance_mut(handle.to_address());
        begun.uname = uname;
        put(tid, begun);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_set_range(tid: *const TidRecord, base: *const c_void, length: Length) -> c_int {
    guarded_in_memory(|| {
        LIBRARY.ready()?;
        LIBRARY.set_range(handle(tid)?, base.addr(), length as usize)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_modify_bytes(
    tid: *const TidRecord,
    base: *mut c_void,
    source: *const c_void,
    length: Length,
) -> c_int {
    guarded_in_memory(|| {
        LIBRARY.ready()?;
        let length = length as usize;
        LIBRARY.set_range(handle(tid)?, base.addr(), length)?;
        if length == 0 {
            return Ok(());
        }
        if source.is_null() {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the source of the copy is NULL",
            ));
        }
        let target: *mut u8 = base.cast();
        // SAFETY: the range was admitted, so `length` bytes at `base` are in a mapped region, which this open
        // transaction now keeps mapped. The header requires as many at the source, and that no other thread
        // of the program uses either during the call.
        unsafe { target.copy_from(source.cast(), length) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_end_transaction(tid: *mut TidRecord, mode: c_int) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let ending = handle(tid)?;
        let durability = durability(mode)?;
        match LIBRARY.end(ending, durability) {
            Ok(()) => {
                clear(tid);
                Ok(())
            }
            Err((failure, CallEnd::Ended)) => {
                clear(tid);
                Err(failure)
            }
            Err((failure, CallEnd::StaysOpen)) => Err(failure),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_abort_transaction(tid: *mut TidRecord) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        LIBRARY.abort(handle(tid)?)?;
        clear(tid);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_flush() -> c_int {
    guarded(|| LIBRARY.flush())
}

#[unsafe(no_mangle)]
extern "C" fn rvm_truncate() -> c_int {
    guarded(|| LIBRARY.truncate())
}

#[unsafe(no_mangle)]
extern "C" fn rvm_create_log(
    options: *const OptionsRecord,
    length: *const OffsetRecord,
    mode: c_long,
) -> c_int {
    guarded(|| {
        LIBRARY.ready()?;
        let named = choices(options)?;
        if !is_usable(length) {
            return Err(CallFailure::new(
                ReturnCode::Offset,
                "the pointer to the log's length is NULL or misaligned",
            ));
        }
        // SAFETY: it is neither NULL nor misaligned, and the header requires an offset.
        let length = unsafe { length.read() };
        crate::log::create(named.log.as_deref(), &new_log(length, mode)?).map(drop)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_return(code: c_int) -> *const c_char {
    code_name(code).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_mode(mode: c_int) -> *const c_char {
    mode_name(mode).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_type(id: c_int) -> *const c_char {
    type_name(id).as_ptr()
}

/// The options that a record chooses; `None` for NULL.
pub(super) fn choices_if_any(options: *const OptionsRecord) -> Result<Option<LibraryOptions>, CallFailure> {
    match options.is_null() {
        true => Ok(None),
        false => choices(options).map(Some),
    }
}

fn choices(options: *const OptionsRecord) -> Result<LibraryOptions, CallFailure> {
    let options = record(options).ok_or_else(no_options)?;
    if !options.pager.is_null() {
        return Err(CallFailure::new(
            ReturnCode::Pager,
            "pagers are not supported; set `pager` to NULL",
        ));
    }
    let create = match options.create_log_file {
        0 => None,
        _ => Some(new_log(options.create_log_size, options.create_log_mode)?),
    };
    let both = match options.flags & COALESCE_TRANS {
        0 => options.flags,
        _ => options.flags | COALESCE_RANGES,
    };
    Ok(LibraryOptions {
        log: name(options.log_dev),
        truncate: options.truncate,
        recovery_buffer: options.recovery_buf_len.max(RECOVERY_BUFFER_MIN),
        flush_buffer: options.flush_buf_len,
        read: options.max_read_len / SECTOR * SECTOR,
        flags: both,
        create,
    })
}

fn new_log(length: OffsetRecord, mode: c_long) -> Result<NewLog, CallFailure> {
    match length.high {
        0 => Ok(NewLog {
            bytes: length.low,
            mode,
        }),
        _ => Err(CallFailure::new(
            ReturnCode::TooBig,
            "the log's length exceeds 64 bits",
        )),
    }
}

fn map_request(region: &RegionRecord) -> Result<MapRequest, CallFailure> {
    let path = name(region.data_dev)
        .ok_or_else(|| CallFailure::new(ReturnCode::Region, "the region's `data_dev` names no segment"))?;
    if region.offset.high != 0 || region.dev_length.high != 0 {
        return Err(CallFailure::new(ReturnCode::Offset, "the offset exceeds 64 bits"));
    }
    Ok(MapRequest {
        path,
        device_length: region.dev_length.low,
        offset: region.offset.low,
        length: region.length,
        address: region.vmaddr.addr(),
    })
}

/// Restore mode for the mode with which a transaction is begun.
pub(super) fn restoring(mode: c_int) -> Result<RestoreMode, CallFailure> {
    match mode {
        RESTORE => Ok(RestoreMode::Restore),
        NO_RESTORE => Ok(RestoreMode::NoRestore),
        other => Err(no_mode(other, "begun with restore or no_restore")),
    }
}

/// Durability for the mode with which a transaction is ended.
pub(super) fn durability(mode: c_int) -> Result<Durability, CallFailure> {
    match mode {
        FLUSH => Ok(Durability::Remote),
        NO_FLUSH => Ok(Durability::Lazy),
        other => Err(no_mode(other, "ended with flush or no_flush")),
    }
}

pub(super) fn handle(tid: *const TidRecord) -> Result<ObjectHandle, CallFailure> {
    let tid = record(tid).ok_or_else(no_tid)?;
    ObjectHandle::from_address(tid.tid.addr()).ok_or_else(|| {
        CallFailure::new(
            ReturnCode::Transaction,
            "the record contains no open transaction: it was not begun, or has ended; call rvm_begin_transaction",
        )
    })
}

/// Clears a record whose transaction has ended. Its pointer was checked before.
fn clear(tid: *mut TidRecord) {
    if let Some(mut ended) = record(tid) {
        ended.tid = without_provenance_mut(0);
        put(tid, ended);
    }
}

fn tid_of(listed: &TransactionInfo) -> TidRecord {
    TidRecord {
        uname: listed.uname,
        tid: without_provenance_mut(listed.handle.to_address()),
        ..TidRecord::fresh(false)
    }
}

/// Copies the log's name into the program's buffer.
fn put_name(buffer: *mut c_char, name: &str) {
    let bytes = name.as_bytes();
    assert!(
        bytes.len() < libc::PATH_MAX as usize,
        "the length of the name was checked at the opening"
    );
    let target: *mut u8 = buffer.cast();
    // SAFETY: the caller checked that it is not NULL, and the header requires MAXPATHLEN + 1 bytes there.
    unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: as above: the name is shorter than that.
    let end = unsafe { target.add(bytes.len()) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}

fn no_options() -> CallFailure {
    CallFailure::new(
        ReturnCode::Options,
        "the pointer is not an options record initialised by rvm_init_options",
    )
}

fn no_region() -> CallFailure {
    CallFailure::new(
        ReturnCode::Region,
        "the pointer is not a region record initialised by rvm_init_region",
    )
}

fn no_tid() -> CallFailure {
    CallFailure::new(
        ReturnCode::Transaction,
        "the pointer is not a transaction record initialised by rvm_init_tid",
    )
}

fn no_mode(mode: c_int, wanted: &str) -> CallFailure {
    let name = mode_name(mode).to_string_lossy();
    CallFailure::new(
        ReturnCode::Mode,
        format!("mode {mode} ({name}) is not valid for this call: a transaction is {wanted}"),
    )
}
