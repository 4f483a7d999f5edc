//! The functions of `far.h`.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::without_provenance_mut;

use netram_far::{ArenaConfig, RemotePagesConfig, Replacement, WordAccess};
use netram_far_machine::limit::PAGE_BYTES;
use netram_journal::JournalSettings;
use netram_transport::NetAddress;

use super::shared::{Opaque, must_be_usable, opaque, security, text, wrong};
use super::{guarded, heap, is_usable, name, put, record};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::far::{FARS, FarOptions, FarStatus};
use crate::record::Length;
use crate::slots::ObjectHandle;

/// Largest number of lenders; more are refused before their names are read.
const LENDERS_MAX: u64 = 16;

#[unsafe(no_mangle)]
extern "C" fn rvm_init_far_options(options: *mut FarOptions) {
    heap::init(options);
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_open(options: *const FarOptions, far: *mut Opaque) -> c_int {
    guarded(|| {
        FARS.ready()?;
        must_be_usable(far)?;
        let options = record(options)
            .ok_or_else(|| wrong("`options` is not a record initialised by rvm_init_far_options"))?;
        let handle = FARS.open(chosen(&options)?)?;
        put(far, opaque(handle));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_alloc(far: Opaque, bytes: Length, memory: *mut Opaque) -> c_int {
    guarded(|| {
        FARS.ready()?;
        must_be_usable(memory)?;
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0);
        let bytes = bytes
            .ok_or_else(|| CallFailure::new(ReturnCode::Range, "an allocation has at least one byte"))?;
        put(memory, without_provenance_mut(FARS.alloc(handle(far)?, bytes)?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_free(far: Opaque, memory: *const c_void) -> c_int {
    guarded(|| {
        FARS.ready()?;
        match memory.is_null() {
            true => Ok(()),
            false => FARS.free(handle(far)?, memory.addr()),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_status(far: Opaque, status: *mut FarStatus) -> c_int {
    guarded(|| {
        FARS.ready()?;
        must_be_usable(status)?;
        put(status, FARS.status(handle(far)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_far_close(far: Opaque) -> c_int {
    guarded(|| {
        FARS.ready()?;
        FARS.close(handle(far)?)
    })
}

/// The options that a record chooses.
fn chosen(options: &FarOptions) -> Result<ArenaConfig, CallFailure> {
    if options.reserved != 0 {
        return Err(wrong(
            "`reserved` is not 0: the program needs a newer library than this one",
        ));
    }
    let lenders = lenders(options)?;
    // Without lenders there is no one to hide anything from.
    let nobody = lenders.is_empty() && options.key_file.is_null();
    let mut depot = RemotePagesConfig {
        lenders,
        security: security(name(options.key_file), options.insecure != 0 || nobody)?,
        copies: options.copies as usize,
        spill: name(options.spill),
        ..RemotePagesConfig::default()
    };
    if options.spill_bytes != 0 {
        depot.spill_bytes = options.spill_bytes;
    }
    if options.lender_bytes != 0 {
        let pages = options.lender_bytes / PAGE_BYTES as u64;
        depot.pages_max = u32::try_from(pages).unwrap_or(u32::MAX);
    }
    let mut config = ArenaConfig {
        bytes: options.bytes,
        local_bytes: options.local_bytes,
        inactive_bytes: Some(options.hidden_bytes).filter(|bytes| *bytes != 0),
        packed_bytes: Some(options.packed_bytes).filter(|bytes| *bytes != FarOptions::PACKED_UNSET),
        words: words(options.words),
        patched_bytes: patched_bytes(options.patched_bytes),
        replacement: replacement(options.replacement)?,
        handlers: options.threads as usize,
        user_faults_only: options.user_faults_only != 0,
        ..ArenaConfig::default()
    };
    if let Some(wait) = text(options.wait, "wait")? {
        let wait = wait
            .parse()
            .map_err(|reason| wrong(format!("wait {wait:?}: {reason}")))?;
        (config.wait, depot.wait) = (wait, wait);
    }
    config.remote_pages = depot;
    Ok(config)
}

fn lenders(options: &FarOptions) -> Result<Vec<NetAddress>, CallFailure> {
    if options.lender_count == 0 {
        let settings = JournalSettings::from_environment();
        let found = settings.and_then(|settings| settings.find_lenders());
        return found.map_err(|error| wrong(error.to_string()));
    }
    if options.lender_count > LENDERS_MAX || !is_usable(options.lenders) {
        return Err(wrong(format!(
            "`lenders` must be an array of `n_lenders` names, at most {LENDERS_MAX}"
        )));
    }
    (0..options.lender_count as usize)
        .map(|at| {
            // SAFETY: the array is neither NULL nor misaligned, and the header requires this many names in
            // it.
            let element = unsafe { options.lenders.add(at) };
            // SAFETY: as above.
            let lender: *const c_char = unsafe { element.read() };
            let lender = text(lender, "lenders")?.ok_or_else(|| wrong(format!("lender {at} is NULL")))?;
            lender
                .parse()
                .map_err(|reason| wrong(format!("lender {lender:?}: {reason}")))
        })
        .collect()
}

fn words(chosen: Length) -> WordAccess {
    match chosen {
        FarOptions::NO_WORDS => WordAccess::Never,
        FarOptions::MEASURED_WORDS => WordAccess::Measured,
        // A number that is too large is refused later, like any other above the limit.
        count => WordAccess::Counted(u32::try_from(count).unwrap_or(u32::MAX)),
    }
}

fn patched_bytes(chosen: Length) -> Option<u64> {
    match chosen {
        0 => None,
        FarOptions::NO_PATCHES => Some(0),
        bytes => Some(bytes),
    }
}

fn replacement(chosen: c_int) -> Result<Replacement, CallFailure> {
    match chosen {
        0 => Ok(Replacement::Dueling),
        1 => Ok(Replacement::Fifo),
        2 => Ok(Replacement::Clock),
        3 => Ok(Replacement::Lru),
        4 => Ok(Replacement::Random),
        other => Err(wrong(format!(
            "`replacement` has the value {other}, which is not an rvm_far_replacement_t"
        ))),
    }
}

pub(super) fn handle(opaque: Opaque) -> Result<ObjectHandle, CallFailure> {
    ObjectHandle::from_address(opaque.addr())
        .ok_or_else(|| CallFailure::new(ReturnCode::Handle, "the handle of the far memory is NULL"))
}
