//! Pinned readers.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;

use super::super::{guarded, guarded_in_memory, put};
use super::{Opaque, handle, must_be_usable, opaque};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::nodes::{AgeRecord, NODES};
use crate::record::Length;

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_begin(node: Opaque, reader: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(reader)?;
        let begun = NODES.begin_reading(handle(node)?)?;
        put(reader, opaque(begun));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_check(reader: Opaque) -> c_int {
    guarded_in_memory(|| {
        NODES.ready()?;
        NODES.check_reader(handle(reader)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_read(
    reader: Opaque,
    base: *const c_void,
    target: *mut c_void,
    length: Length,
) -> c_int {
    guarded(|| {
        NODES.ready()?;
        let (reader, length) = (handle(reader)?, length as usize);
        if target.is_null() && length > 0 {
            return Err(CallFailure::new(
                ReturnCode::Range,
                "the target of the copy is NULL",
            ));
        }
        let (source, target): (*const u8, *mut u8) = (base.cast(), target.cast());
        NODES.read(reader, base.addr(), length, || {
            if length > 0 {
                // SAFETY: `length` bytes at `base` are in the region, which the reader keeps mapped, and the
                // library stores to none of them during the copy. The header requires as much room at the
                // target.
                unsafe { source.copy_to(target, length) };
            }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_root(reader: Opaque, lock: c_uint, number: Length, block: *mut Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(block)?;
        let address = NODES.reader_root(handle(reader)?, lock, number)?;
        put(block, without_provenance_mut(address));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_accept(reader: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.accept(handle(reader)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_age(reader: Opaque, age: *mut AgeRecord) -> c_int {
    guarded(|| {
        NODES.ready()?;
        must_be_usable(age)?;
        put(age, NODES.age(handle(reader)?)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_reader_end(reader: Opaque) -> c_int {
    guarded(|| {
        NODES.ready()?;
        NODES.end_reading(handle(reader)?)
    })
}
