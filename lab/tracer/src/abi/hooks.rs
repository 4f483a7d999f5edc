//! Functions that gcc and clang call with `-fsanitize=thread`: a hook before each access that another thread
//! might see. Each function here is called by one of the two; those that only the sanitizer needs do nothing.
//!
//! There are no calls for stack variables whose address stays in their function, nor within functions of the
//! C library ([`super::wraps`]).

use std::ffi::c_void;

use super::{begin, reference, references};

/// Every compiled object file calls this first.
#[unsafe(no_mangle)]
extern "C" fn __tsan_init() {
    begin();
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_func_entry(_caller: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn __tsan_func_exit() {}

/// A hook for accesses of the size in its name.
macro_rules! accesses {
    ($($name:ident $bytes:literal $write:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(address: *const c_void) {
            reference(address.addr() as u64, $bytes, $write);
        }
    )*};
}

accesses! {
    __tsan_read1 1 false;
    __tsan_read2 2 false;
    __tsan_read4 4 false;
    __tsan_read8 8 false;
    __tsan_read16 16 false;
    __tsan_write1 1 true;
    __tsan_write2 2 true;
    __tsan_write4 4 true;
    __tsan_write8 8 true;
    __tsan_write16 16 true;
    __tsan_unaligned_read2 2 false;
    __tsan_unaligned_read4 4 false;
    __tsan_unaligned_read8 8 false;
    __tsan_unaligned_read16 16 false;
    __tsan_unaligned_write2 2 true;
    __tsan_unaligned_write4 4 true;
    __tsan_unaligned_write8 8 true;
    __tsan_unaligned_write16 16 true;
    __tsan_volatile_read1 1 false;
    __tsan_volatile_read2 2 false;
    __tsan_volatile_read4 4 false;
    __tsan_volatile_read8 8 false;
    __tsan_volatile_read16 16 false;
    __tsan_volatile_write1 1 true;
    __tsan_volatile_write2 2 true;
    __tsan_volatile_write4 4 true;
    __tsan_volatile_write8 8 true;
    __tsan_volatile_write16 16 true;
    __tsan_unaligned_volatile_read2 2 false;
    __tsan_unaligned_volatile_read4 4 false;
    __tsan_unaligned_volatile_read8 8 false;
    __tsan_unaligned_volatile_read16 16 false;
    __tsan_unaligned_volatile_write2 2 true;
    __tsan_unaligned_volatile_write4 4 true;
    __tsan_unaligned_volatile_write8 8 true;
    __tsan_unaligned_volatile_write16 16 true;
}

/// A hook for a read and a write of the same bytes, which clang combines.
macro_rules! both {
    ($($name:ident $bytes:literal;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(address: *const c_void) {
            reference(address.addr() as u64, $bytes, false);
            reference(address.addr() as u64, $bytes, true);
        }
    )*};
}

both! {
    __tsan_read_write1 1;
    __tsan_read_write2 2;
    __tsan_read_write4 4;
    __tsan_read_write8 8;
    __tsan_read_write16 16;
    __tsan_unaligned_read_write2 2;
    __tsan_unaligned_read_write4 4;
    __tsan_unaligned_read_write8 8;
    __tsan_unaligned_read_write16 16;
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_read_range(address: *const c_void, bytes: usize) {
    references(address.addr() as u64, bytes as u64, false);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_write_range(address: *const c_void, bytes: usize) {
    references(address.addr() as u64, bytes as u64, true);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_vptr_read(place: *const c_void) {
    reference(place.addr() as u64, 8, false);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_vptr_update(place: *const c_void, _value: *const c_void) {
    reference(place.addr() as u64, 8, true);
}
