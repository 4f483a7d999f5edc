//! The functions of `shared.h`.
//!
//! | module | has |
//! |---|---|
//! | `join` | options of a node that joins |
//! | `node` | nodes |
//! | `txn` | transactions |
//! | `heap` | persistent heaps |
//! | `reader` | pinned readers |

mod heap;
mod join;
mod node;
mod reader;
mod txn;

pub(super) use self::join::{security, text};

use std::ffi::{c_int, c_long, c_void};
use std::ptr::without_provenance_mut;
use std::time::Duration;

use netram_shared_machine::LockMode;

use super::is_usable;
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::slots::ObjectHandle;

/// A handle of C: a number, never dereferenced.
pub(super) type Opaque = *mut c_void;

const SHARED: c_int = 1;
const EXCLUSIVE: c_int = 2;

fn holding(hold: c_int) -> Result<LockMode, CallFailure> {
    match hold {
        SHARED => Ok(LockMode::Shared),
        EXCLUSIVE => Ok(LockMode::Exclusive),
        other => Err(CallFailure::new(
            ReturnCode::Mode,
            format!("a lock is held rvm_shared or rvm_exclusive, not {other}"),
        )),
    }
}

fn handle(opaque: Opaque) -> Result<ObjectHandle, CallFailure> {
    ObjectHandle::from_address(opaque.addr()).ok_or_else(|| {
        CallFailure::new(
            ReturnCode::Handle,
            "the handle of the node, transaction or reader is NULL",
        )
    })
}

pub(super) fn opaque(handle: ObjectHandle) -> Opaque {
    without_provenance_mut(handle.to_address())
}

fn milliseconds(count: c_long) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

pub(super) fn must_be_usable<T>(pointer: *const T) -> Result<(), CallFailure> {
    match is_usable(pointer) {
        true => Ok(()),
        false => Err(CallFailure::new(
            ReturnCode::Range,
            "the pointer to a record is NULL or misaligned",
        )),
    }
}

pub(super) fn wrong(text: impl Into<String>) -> CallFailure {
    CallFailure::new(ReturnCode::Options, text)
}
