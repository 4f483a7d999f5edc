//! Memory of the program in which regions can be mapped.

use std::ffi::{c_char, c_int};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use netram_rvm::{MapError, Region};
use netram_store::JournaledRvm;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::{guarded, is_usable, put};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::library::LIBRARY;
use crate::record::Length;
use crate::registered_pages::{PAGE, RegisteredSpan, end_of_pages};

/// Once a hint for recovery's scheduling. Programs set it, but nothing reads it. As wide as the widest type
/// with which programs declare it.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rvm_no_yield: AtomicI64 = AtomicI64::new(0);

/// Bytes mapped by `rvm_load_segment`.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rds_rvmsize: AtomicI64 = AtomicI64::new(0);

/// Lowest address mapped by the last `rvm_load_segment`.
#[allow(non_upper_case_globals, reason = "the name is C's")]
#[unsafe(no_mangle)]
static rds_startaddr: AtomicPtr<c_char> = AtomicPtr::new(null_mut());

/// Publishes the size and address of a loaded segment to programs.
pub(super) fn loaded(bytes: usize, start: usize) {
    rds_rvmsize.fetch_add(bytes as i64, Ordering::Relaxed);
    rds_startaddr.store(without_provenance_mut(start), Ordering::Relaxed);
}

/// Subtracts the bytes of an unmapped segment from the published size.
pub(super) fn released(bytes: usize) {
    rds_rvmsize.fetch_sub(bytes as i64, Ordering::Relaxed);
}

/// Maps a region in place of memory that the program registered for it.
pub(crate) fn map_over(
    memory: &JournaledRvm,
    path: &str,
    offset: u64,
    length: u64,
    span: RegisteredSpan,
) -> Result<Region, MapError> {
    // SAFETY: `RegisteredSpan` proves that the program registered all these pages, and so stated that they
    // are its own and that a region may replace them. The caller, which holds `setup`, has checked that no
    // region uses them.
    unsafe { memory.map_over(path, offset, length, span.start()) }
}

#[unsafe(no_mangle)]
extern "C" fn rvm_register_page(address: *mut c_char, length: Length) -> c_int {
    let start = address.addr();
    let known = alone(|| {
        Ok(usize::try_from(length).is_ok_and(|length| {
            !LIBRARY.regions.meet(start, length) && LIBRARY.registered_pages.register(start, length)
        }))
    });
    known.is_ok_and(|known| known).into()
}

#[unsafe(no_mangle)]
extern "C" fn rvm_unregister_page(address: *mut c_char, length: Length) -> c_int {
    let forgotten = alone(|| {
        Ok(usize::try_from(length)
            .is_ok_and(|length| LIBRARY.registered_pages.forget(address.addr(), length)))
    });
    forgotten.is_ok_and(|forgotten| forgotten).into()
}

#[unsafe(no_mangle)]
extern "C" fn allocate_vm(address: *mut *mut c_char, length: Length) -> c_int {
    guarded(|| {
        if !is_usable(address) {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the pointer to the address is NULL or misaligned",
            ));
        }
        // SAFETY: it is neither NULL nor misaligned, and the header requires a pointer to a pointer.
        let wanted = unsafe { address.read() };
        put(address, alone(|| allocate(wanted.addr(), length))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn deallocate_vm(address: *mut c_char, length: Length) -> c_int {
    guarded(|| alone(|| deallocate(address, length)))
}

fn deallocate(address: *mut c_char, length: Length) -> Result<(), CallFailure> {
    let start = address.addr();
    let bytes = whole_pages(length)?;
    let refused = |why| {
        let text = format!("{bytes} bytes at {start:#x} cannot be released: {why}");
        Err(CallFailure::new(ReturnCode::Range, text))
    };
    if LIBRARY.regions.meet(start, bytes) {
        return refused("they contain a mapped region; unmap it first");
    }
    if end_of_pages(start, bytes).is_none() {
        return refused("the address is not a multiple of the page size");
    }
    LIBRARY.registered_pages.forget(start, bytes);
    // SAFETY: the program states that these pages are its own and no longer used. No region has them, and
    // none can get them during the call.
    unsafe { munmap(address.cast(), bytes) }.map_err(|errno| {
        CallFailure::io(
            errno.raw_os_error(),
            format!("{bytes} bytes at {start:#x} could not be unmapped: {errno}"),
        )
    })
}

/// Calls `act` while no region is mapped or unmapped. Fails in a child of `fork`, where the lock may be held
/// forever.
fn alone<R>(act: impl FnOnce() -> Result<R, CallFailure>) -> Result<R, CallFailure> {
    LIBRARY.refuse_child()?;
    let _turn = LIBRARY.turn();
    act()
}

/// New memory at `address`, or anywhere for 0, registered as a place for regions.
fn allocate(address: usize, length: Length) -> Result<*mut c_char, CallFailure> {
    let bytes = whole_pages(length)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let mut flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    if address != 0 {
        flags |= MapFlags::FIXED_NOREPLACE;
    }
    let wanted = without_provenance_mut(address);
    // SAFETY: without an address the kernel chooses unused ones; with one it refuses those in use.
    let got = unsafe { mmap_anonymous(wanted, bytes, protection, flags) }.map_err(|errno| {
        let text = format!(
            "{bytes} bytes at {address:#x} could not be mapped: {errno}; choose another address, or none"
        );
        match errno {
            rustix::io::Errno::NOMEM => CallFailure::io(errno.raw_os_error(), text),
            _ => CallFailure::new(ReturnCode::Internal, text),
        }
    })?;
    // A kernel before 4.17, and valgrind, treat the flag as a hint.
    let there = address == 0 || got.addr() == address;
    if there && LIBRARY.registered_pages.renew(got.addr(), bytes) {
        return Ok(got.cast());
    }
    // SAFETY: these pages are new and known only here.
    let _ = unsafe { munmap(got, bytes) };
    Err(CallFailure::new(
        ReturnCode::Internal,
        format!("{bytes} bytes at {address:#x} are in use; choose another address, or none"),
    ))
}

fn whole_pages(length: Length) -> Result<usize, CallFailure> {
    let bytes = usize::try_from(length)
        .ok()
        .and_then(|it| it.checked_next_multiple_of(PAGE));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| CallFailure::new(ReturnCode::Range, format!("{length} bytes cannot be mapped")))
}
