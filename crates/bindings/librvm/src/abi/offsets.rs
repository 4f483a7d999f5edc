//! Arithmetic with offsets of 128 bits, and pages.

use super::is_usable;
use crate::record::{Length, OffsetRecord};
use crate::registered_pages::PAGE;

fn whole(offset: OffsetRecord) -> u128 {
    u128::from(offset.high) << 64 | u128::from(offset.low)
}

fn halves(whole: u128) -> OffsetRecord {
    OffsetRecord {
        high: (whole >> 64) as u64,
        low: whole as u64,
    }
}

/// The offset at `pointer`; C's macros always pass a valid one.
fn at(pointer: *const OffsetRecord) -> u128 {
    if !is_usable(pointer) {
        return 0;
    }
    // SAFETY: it is neither NULL nor misaligned, and the header requires an offset.
    whole(unsafe { pointer.read() })
}

#[unsafe(no_mangle)]
extern "C" fn rvm_mk_offset(high: Length, low: Length) -> OffsetRecord {
    OffsetRecord { high, low }
}

#[unsafe(no_mangle)]
extern "C" fn rvm_add_offsets(x: *const OffsetRecord, y: *const OffsetRecord) -> OffsetRecord {
    halves(at(x).wrapping_add(at(y)))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_add_length_to_offset(offset: *const OffsetRecord, length: Length) -> OffsetRecord {
    halves(at(offset).wrapping_add(length.into()))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_sub_offsets(x: *const OffsetRecord, y: *const OffsetRecord) -> OffsetRecord {
    halves(at(x).wrapping_sub(at(y)))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_sub_length_from_offset(offset: *const OffsetRecord, length: Length) -> OffsetRecord {
    halves(at(offset).wrapping_sub(length.into()))
}

#[unsafe(no_mangle)]
extern "C" fn rvm_rnd_offset_up_to_page(offset: *const OffsetRecord) -> OffsetRecord {
    let page = PAGE as u128;
    halves(at(offset).wrapping_add(page - 1) / page * page)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_rnd_offset_dn_to_page(offset: *const OffsetRecord) -> OffsetRecord {
    let page = PAGE as u128;
    halves(at(offset) / page * page)
}

#[unsafe(no_mangle)]
extern "C" fn rvm_page_size() -> Length {
    PAGE as Length
}

#[unsafe(no_mangle)]
extern "C" fn rvm_page_mask() -> Length {
    !(PAGE as Length - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences_carry() {
        let x = rvm_mk_offset(1, u64::MAX);
        let y = rvm_mk_offset(0, 2);
        assert_eq!(rvm_add_offsets(&x, &y), rvm_mk_offset(2, 1));
        assert_eq!(rvm_sub_offsets(&rvm_mk_offset(2, 1), &y), x);
        assert_eq!(rvm_add_length_to_offset(&x, 2), rvm_mk_offset(2, 1));
        assert_eq!(rvm_sub_length_from_offset(&rvm_mk_offset(2, 1), 2), x);
    }

    #[test]
    fn rounding_carries_and_keeps_whole_pages() {
        let round = |high, low| rvm_rnd_offset_up_to_page(&rvm_mk_offset(high, low));
        assert_eq!(round(0, 1), rvm_mk_offset(0, 4096));
        assert_eq!(round(0, 4096), rvm_mk_offset(0, 4096));
        assert_eq!(round(0, u64::MAX), rvm_mk_offset(1, 0));
        let down = rvm_rnd_offset_dn_to_page(&rvm_mk_offset(3, 8191));
        assert_eq!(down, rvm_mk_offset(3, 4096));
        assert_eq!(rvm_page_mask(), !4095);
    }
}
