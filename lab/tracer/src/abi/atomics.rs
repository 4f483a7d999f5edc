//! Atomic operations: with `-fsanitize=thread` the compiler leaves them to the library. They are done with
//! the strictest memory order, whatever order is requested.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::reference;

const ORDER: Ordering = Ordering::SeqCst;

/// The operations on one size.
macro_rules! atomics {
    ($bytes:literal, $value:ty, $atomic:ty, $load:ident, $store:ident, $exchange:ident, $add:ident, $sub:ident, $and:ident, $or:ident,
        $xor:ident, $nand:ident, $strong:ident, $weak:ident, $val:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $load(place: *mut $value, _order: i32) -> $value {
            reference(place.addr() as u64, $bytes, false);
            // SAFETY: the program does an atomic operation at this address, so it is aligned and valid.
            let atomic = unsafe { <$atomic>::from_ptr(place) };
            atomic.load(ORDER)
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $store(place: *mut $value, value: $value, _order: i32) {
            reference(place.addr() as u64, $bytes, true);
            // SAFETY: as above.
            let atomic = unsafe { <$atomic>::from_ptr(place) };
            atomic.store(value, ORDER);
        }

        atomics!(@change $bytes, $value, $atomic, $exchange swap, $add fetch_add, $sub fetch_sub, $and fetch_and, $or fetch_or,
            $xor fetch_xor, $nand fetch_nand);
        atomics!(@compare $bytes, $value, $atomic, $strong compare_exchange, $weak compare_exchange_weak);

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $val(place: *mut $value, expected: $value, value: $value, _order: i32, _failed: i32) -> $value {
            reference(place.addr() as u64, $bytes, true);
            // SAFETY: as above.
            let atomic = unsafe { <$atomic>::from_ptr(place) };
            let (Ok(found) | Err(found)) = atomic.compare_exchange(expected, value, ORDER, ORDER);
            found
        }
    };
    (@change $bytes:literal, $value:ty, $atomic:ty, $($name:ident $method:ident),*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(place: *mut $value, value: $value, _order: i32) -> $value {
            reference(place.addr() as u64, $bytes, true);
            // SAFETY: as above.
            let atomic = unsafe { <$atomic>::from_ptr(place) };
            atomic.$method(value, ORDER)
        }
    )*};
    (@compare $bytes:literal, $value:ty, $atomic:ty, $($name:ident $method:ident),*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(place: *mut $value, expected: *mut $value, value: $value, _order: i32, _failed: i32) -> i32 {
            reference(place.addr() as u64, $bytes, true);
            // SAFETY: as above.
            let atomic = unsafe { <$atomic>::from_ptr(place) };
            // SAFETY: the caller's variable has the expected value.
            let wanted = unsafe { expected.read() };
            match atomic.$method(wanted, value, ORDER, ORDER) {
                Ok(_) => 1,
                Err(found) => {
                    // SAFETY: as above.
                    unsafe { expected.write(found) };
                    0
                }
            }
        }
    )*};
}

atomics!(
    1,
    u8,
    AtomicU8,
    __tsan_atomic8_load,
    __tsan_atomic8_store,
    __tsan_atomic8_exchange,
    __tsan_atomic8_fetch_add,
    __tsan_atomic8_fetch_sub,
    __tsan_atomic8_fetch_and,
    __tsan_atomic8_fetch_or,
    __tsan_atomic8_fetch_xor,
    __tsan_atomic8_fetch_nand,
    __tsan_atomic8_compare_exchange_strong,
    __tsan_atomic8_compare_exchange_weak,
    __tsan_atomic8_compare_exchange_val
);

atomics!(
    2,
    u16,
    AtomicU16,
    __tsan_atomic16_load,
    __tsan_atomic16_store,
    __tsan_atomic16_exchange,
    __tsan_atomic16_fetch_add,
    __tsan_atomic16_fetch_sub,
    __tsan_atomic16_fetch_and,
    __tsan_atomic16_fetch_or,
    __tsan_atomic16_fetch_xor,
    __tsan_atomic16_fetch_nand,
    __tsan_atomic16_compare_exchange_strong,
    __tsan_atomic16_compare_exchange_weak,
    __tsan_atomic16_compare_exchange_val
);

atomics!(
    4,
    u32,
    AtomicU32,
    __tsan_atomic32_load,
    __tsan_atomic32_store,
    __tsan_atomic32_exchange,
    __tsan_atomic32_fetch_add,
    __tsan_atomic32_fetch_sub,
    __tsan_atomic32_fetch_and,
    __tsan_atomic32_fetch_or,
    __tsan_atomic32_fetch_xor,
    __tsan_atomic32_fetch_nand,
    __tsan_atomic32_compare_exchange_strong,
    __tsan_atomic32_compare_exchange_weak,
    __tsan_atomic32_compare_exchange_val
);

atomics!(
    8,
    u64,
    AtomicU64,
    __tsan_atomic64_load,
    __tsan_atomic64_store,
    __tsan_atomic64_exchange,
    __tsan_atomic64_fetch_add,
    __tsan_atomic64_fetch_sub,
    __tsan_atomic64_fetch_and,
    __tsan_atomic64_fetch_or,
    __tsan_atomic64_fetch_xor,
    __tsan_atomic64_fetch_nand,
    __tsan_atomic64_compare_exchange_strong,
    __tsan_atomic64_compare_exchange_weak,
    __tsan_atomic64_compare_exchange_val
);

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_thread_fence(_order: i32) {
    fence(ORDER);
}

#[unsafe(no_mangle)]
extern "C" fn __tsan_atomic_signal_fence(_order: i32) {
    std::sync::atomic::compiler_fence(ORDER);
}
