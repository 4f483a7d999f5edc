//! The layouts of the records in `far.h`, which describes their fields.

use std::ffi::{c_char, c_int, c_uint, c_ulong};
use std::mem::{offset_of, size_of};
use std::ptr::null;

use netram_far::Arena;

use crate::record::{CRecord, Length, RecordHead, head_of};

/// `rvm_far_options_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarOptions {
    pub(crate) head: RecordHead,
    pub(crate) bytes: Length,
    pub(crate) local_bytes: Length,
    pub(crate) lenders: *const *const c_char,
    pub(crate) lender_count: c_ulong,
    pub(crate) key_file: *const c_char,
    pub(crate) insecure: c_int,
    pub(crate) copies: c_uint,
    pub(crate) spill: *const c_char,
    pub(crate) spill_bytes: Length,
    pub(crate) lender_bytes: Length,
    pub(crate) hidden_bytes: Length,
    pub(crate) packed_bytes: Length,
    pub(crate) replacement: c_int,
    pub(crate) threads: c_uint,
    pub(crate) user_faults_only: c_int,
    pub(crate) wait: *const c_char,
    pub(crate) words: Length,
    pub(crate) patched_bytes: Length,
    pub(crate) reserved: Length,
}

/// `rvm_far_status_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarStatus {
    pub(crate) used: Length,
    pub(crate) packed: Length,
    pub(crate) cap: Length,
    pub(crate) waiting: Length,
    pub(crate) short: Length,
    pub(crate) lost: Length,
    pub(crate) linked: Length,
    pub(crate) faults: Length,
    pub(crate) fetched: Length,
    pub(crate) ahead: Length,
    pub(crate) sent: Length,
    pub(crate) patched: Length,
    pub(crate) words: Length,
    pub(crate) written: Length,
    pub(crate) reserved: [Length; 2],
}

impl FarOptions {
    /// The library chooses the share of compressed pages.
    pub(crate) const PACKED_UNSET: Length = Length::MAX;
    /// Pages are transferred whole. Zero, because programs built before this field existed leave zeros there.
    pub(crate) const NO_WORDS: Length = 0;
    /// The counter of a page begins with the measured value.
    pub(crate) const MEASURED_WORDS: Length = Length::MAX;
    /// Elements are never stored without their page.
    pub(crate) const NO_PATCHES: Length = Length::MAX;
}

impl CRecord for FarOptions {
    const ID: u32 = 46;

    fn fresh(from_heap: bool) -> FarOptions {
        FarOptions {
            head: head_of::<FarOptions>(from_heap),
            bytes: 0,
            local_bytes: 0,
            lenders: null(),
            lender_count: 0,
            key_file: null(),
            insecure: 0,
            copies: 2,
            spill: null(),
            spill_bytes: 0,
            lender_bytes: 0,
            hidden_bytes: 0,
            packed_bytes: FarOptions::PACKED_UNSET,
            replacement: 0,
            threads: 4,
            user_faults_only: 0,
            wait: null(),
            words: FarOptions::NO_WORDS,
            patched_bytes: 0,
            reserved: 0,
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

impl FarStatus {
    pub(crate) fn of(arena: &Arena) -> FarStatus {
        let (status, depot) = (arena.status(), arena.remote_pages().status());
        FarStatus {
            used: status.used.into(),
            packed: status.packed.into(),
            cap: status.frames.into(),
            waiting: depot.pending,
            short: depot.short,
            lost: depot.lost,
            linked: depot.lenders.iter().filter(|lender| lender.linked).count() as Length,
            faults: status.tally.faults,
            fetched: status.tally.fetched,
            ahead: status.tally.ahead,
            sent: status.tally.sent,
            patched: status.patched.into(),
            words: status.tally.words,
            written: status.tally.written,
            reserved: [0; 2],
        }
    }
}

// `tests/c/far.c` checks the same numbers in the header.
const _: () = {
    assert!(size_of::<FarOptions>() == 144);
    assert!(offset_of!(FarOptions, lenders) == 24);
    assert!(offset_of!(FarOptions, insecure) == 48);
    assert!(offset_of!(FarOptions, spill) == 56);
    assert!(offset_of!(FarOptions, replacement) == 96);
    assert!(offset_of!(FarOptions, user_faults_only) == 104);
    assert!(offset_of!(FarOptions, words) == 120);
    assert!(offset_of!(FarOptions, reserved) == 136);
    assert!(size_of::<FarStatus>() == 128);
    assert!(offset_of!(FarStatus, sent) == 80);
    assert!(offset_of!(FarStatus, written) == 104);
};
