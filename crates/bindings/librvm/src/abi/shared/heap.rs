//! Persistent heaps of shared regions. A block is an address in the region, from which its lock follows.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;

use super::super::{guarded, put};
use super::{Opaque, handle, must_be_usable};
use crate::failure::CallFailure;
use crate::nodes::{HeapRecord, NODES};
use crate::record::Length;

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_format_heap(txn: Opaque, lock: c_uint) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.format_heap(handle(txn)?, lock)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_malloc(txn: Opaque, lock: c_uint, size: Length, block: *mut Opaque) -> c_int {
    answering(block, || NODES.allocate(handle(txn)?, lock, size))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_realloc(txn: Opaque, old: *const c_void, size: Length, block: *mut Opaque) -> c_int {
    answering(block, || NODES.resize(handle(txn)?, old.addr(), size))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_free(txn: Opaque, block: *const c_void) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.free(handle(txn)?, block.addr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_block_size(txn: Opaque, block: *const c_void, size: *mut Length) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(size)?;
        put(size, NODES.block_bytes(handle(txn)?, block.addr())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_root(txn: Opaque, lock: c_uint, number: Length, block: *mut Opaque) -> c_int {
    answering(block, || NODES.root(handle(txn)?, lock, number))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_set_root(txn: Opaque, lock: c_uint, number: Length, block: *const c_void) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.set_root(handle(txn)?, lock, number, block.addr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_txn_heap_info(txn: Opaque, lock: c_uint, info: *mut HeapRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(info)?;
        put(info, NODES.heap_info(handle(txn)?, lock)?);
        Ok(())
    })
}

/// Runs a call that returns a block: its address, or NULL after an error.
fn answering(block: *mut Opaque, call: impl FnOnce() -> Result<usize, CallFailure>) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(block)?;
        put(block, without_provenance_mut(call()?));
        Ok(())
    })
}
