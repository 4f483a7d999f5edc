//! Transactions on shared memory.

use std::ffi::{c_int, c_long, c_uint, c_void};

use netram_shared::node::AcquireError;
use netram_shared_machine::LockId;
use netram_shared_machine::limit::STAMP_LOCKS_MAX;

use super::super::calls::restoring;
use super::super::{guarded, guarded_in_memory, put};
use super::{Opaque, handle, holding, milliseconds, must_be_usable, opaque};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::nodes::{LockRecord, NODES, NewRecord};
use crate::record::Length;

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_begin(node: Opaque, mode: c_int, txn: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(txn)?;
        let begun = NODES.begin(handle(node)?, restoring(mode)?)?;
        put(txn, opaque(begun));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_set_timeout(txn: Opaque, timeout_ms: c_long) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.set_timeout(handle(txn)?, milliseconds(timeout_ms))
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_acquire(txn: Opaque, lock: c_uint, hold: c_int) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.acquire(handle(txn)?, lock, holding(hold)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_acquire_all(txn: Opaque, locks: *const LockRecord, count: Length) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let txn = handle(txn)?;
        let count = usize::try_from(count)
            .ok()
            .filter(|count| *count <= STAMP_LOCKS_MAX);
        let count = count.ok_or(AcquireError::TooMany(STAMP_LOCKS_MAX))?;
        if count > 0 {
            must_be_usable(locks)?;
        }
        let wanted = (0..count).map(|at| {
            // SAFETY: the array is neither NULL nor misaligned, and the header requires `count` locks in it.
            let element = unsafe { locks.add(at) };
            // SAFETY: as above.
            let LockRecord { lock, hold } = unsafe { element.read() };
            Ok((LockId(lock), holding(hold)?))
        });
        NODES.acquire_all(txn, &wanted.collect::<Result<Vec<_>, CallFailure>>()?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_set_range(txn: Opaque, base: *const c_void, length: Length) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        NODES.declare(handle(txn)?, base.addr(), length as usize, || ())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_modify_bytes(
    txn: Opaque,
    base: *mut c_void,
    source: *const c_void,
    length: Length,
) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        let (txn, length) = (handle(txn)?, length as usize);
        if source.is_null() && length > 0 {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the source of the copy is NULL",
            ));
        }
        let (target, source): (*mut u8, *const u8) = (base.cast(), source.cast());
        NODES.declare(txn, base.addr(), length, || {
            if length > 0 {
                // SAFETY: `length` bytes at `base` were admitted: they are in the region, which the
                // transaction keeps mapped, under a lock that it holds, so no other thread stores there. The
                // header requires as many at the source, which do not overlap them.
                unsafe { target.copy_from(source, length) };
            }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_commit(txn: Opaque, record: *mut NewRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let txn = handle(txn)?;
        if !record.is_null() {
            must_be_usable(record)?;
        }
        let (named, committed) = NODES.commit(txn);
        if let Some(named) = named.filter(|_| !record.is_null()) {
            put(record, named);
        }
        committed
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_abort(txn: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.abort(handle(txn)?)
    })
}
