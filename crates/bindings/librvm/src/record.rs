//! The layouts of the C interface's records. The headers describe their fields.
//!
//! Enumerations are plain integers here, because C may store any value in them.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

/// `rvm_length_t`.
pub(crate) type Length = u64;

/// `rvm_offset_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetRecord {
    pub(crate) high: Length,
    pub(crate) low: Length,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timeval {
    pub(crate) seconds: i64,
    pub(crate) microseconds: i64,
}

/// The first fields of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordHead {
    pub(crate) id: u32,
    /// Whether `rvm_malloc_X` or `rvm_copy_X` allocated the record.
    pub(crate) from_heap: u32,
}

/// A type of record: its id, and its first fields.
pub(crate) trait CRecord: Copy {
    const ID: u32;
    /// A record as initialised by `rvm_init_X`.
    fn fresh(from_heap: bool) -> Self;
    fn head(&mut self) -> &mut RecordHead;
}

/// `rvm_tid_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct TidRecord {
    pub(crate) head: RecordHead,
    pub(crate) uname: Timeval,
    /// Handle of the open transaction (`crate::slots::ObjectHandle`), or NULL.
    pub(crate) tid: *mut c_void,
    pub(crate) reserved: Length,
}

/// `rvm_region_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionRecord {
    pub(crate) head: RecordHead,
    pub(crate) data_dev: *mut c_char,
    pub(crate) dev_length: OffsetRecord,
    pub(crate) offset: OffsetRecord,
    pub(crate) vmaddr: *mut c_char,
    pub(crate) length: Length,
    pub(crate) no_copy: c_int,
}

/// `rvm_options_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OptionsRecord {
    pub(crate) head: RecordHead,
    pub(crate) log_dev: *mut c_char,
    pub(crate) truncate: c_long,
    pub(crate) recovery_buf_len: Length,
    pub(crate) flush_buf_len: Length,
    pub(crate) max_read_len: Length,
    pub(crate) log_empty: c_int,
    pub(crate) pager: *mut c_char,
    pub(crate) n_uncommit: c_long,
    pub(crate) tid_array: *mut TidRecord,
    pub(crate) flags: Length,
    pub(crate) create_log_file: c_int,
    pub(crate) create_log_size: OffsetRecord,
    pub(crate) create_log_mode: c_long,
}

/// `rvm_region_def_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionDefRecord {
    pub(crate) offset: OffsetRecord,
    pub(crate) length: Length,
    pub(crate) vmaddr: *mut c_char,
}

/// `rvm_lenders_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LendersRecord {
    pub(crate) configured: Length,
    pub(crate) members: Length,
    pub(crate) wanted: Length,
    pub(crate) counting: c_int,
}

/// Default of an options record's truncation threshold, in percent.
pub(crate) const TRUNCATE_DEFAULT: c_long = 50;
pub(crate) const RECOVERY_BUFFER_DEFAULT: Length = 256 * 1024;
pub(crate) const FLUSH_BUFFER_DEFAULT: Length = 256 * 1024;
pub(crate) const READ_DEFAULT: Length = 512 * 1024;
pub(crate) const LOG_MODE_DEFAULT: c_long = 0o600;

/// The first fields of a record of type `R`.
pub(crate) fn head_of<R: CRecord>(from_heap: bool) -> RecordHead {
    RecordHead {
        id: R::ID,
        from_heap: from_heap.into(),
    }
}

impl CRecord for TidRecord {
    const ID: u32 = 42;

    fn fresh(from_heap: bool) -> TidRecord {
        TidRecord {
            head: head_of::<TidRecord>(from_heap),
            uname: Timeval::default(),
            tid: null_mut(),
            reserved: 0,
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

impl CRecord for RegionRecord {
    const ID: u32 = 40;

    fn fresh(from_heap: bool) -> RegionRecord {
        RegionRecord {
            head: head_of::<RegionRecord>(from_heap),
            data_dev: null_mut(),
            dev_length: OffsetRecord::default(),
            offset: OffsetRecord::default(),
            vmaddr: null_mut(),
            length: 0,
            no_copy: 0,
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

impl CRecord for OptionsRecord {
    const ID: u32 = 41;

    fn fresh(from_heap: bool) -> OptionsRecord {
        OptionsRecord {
            head: head_of::<OptionsRecord>(from_heap),
            log_dev: null_mut(),
            truncate: TRUNCATE_DEFAULT,
            recovery_buf_len: RECOVERY_BUFFER_DEFAULT,
            flush_buf_len: FLUSH_BUFFER_DEFAULT,
            max_read_len: READ_DEFAULT,
            log_empty: 0,
            pager: null_mut(),
            n_uncommit: 0,
            tid_array: null_mut(),
            flags: 0,
            create_log_file: 0,
            create_log_size: OffsetRecord::default(),
            create_log_mode: LOG_MODE_DEFAULT,
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

// Programs compiled long ago contain these numbers. `tests/c/layout.c` checks the same in the headers.
const _: () = {
    assert!(size_of::<OffsetRecord>() == 16);
    assert!(size_of::<TidRecord>() == 40);
    assert!(offset_of!(TidRecord, uname) == 8);
    assert!(offset_of!(TidRecord, tid) == 24);
    assert!(offset_of!(TidRecord, reserved) == 32);
    assert!(size_of::<RegionRecord>() == 72);
    assert!(offset_of!(RegionRecord, data_dev) == 8);
    assert!(offset_of!(RegionRecord, dev_length) == 16);
    assert!(offset_of!(RegionRecord, offset) == 32);
    assert!(offset_of!(RegionRecord, vmaddr) == 48);
    assert!(offset_of!(RegionRecord, length) == 56);
    assert!(offset_of!(RegionRecord, no_copy) == 64);
    assert!(size_of::<OptionsRecord>() == 120);
    assert!(offset_of!(OptionsRecord, log_dev) == 8);
    assert!(offset_of!(OptionsRecord, truncate) == 16);
    assert!(offset_of!(OptionsRecord, recovery_buf_len) == 24);
    assert!(offset_of!(OptionsRecord, flush_buf_len) == 32);
    assert!(offset_of!(OptionsRecord, max_read_len) == 40);
    assert!(offset_of!(OptionsRecord, log_empty) == 48);
    assert!(offset_of!(OptionsRecord, pager) == 56);
    assert!(offset_of!(OptionsRecord, n_uncommit) == 64);
    assert!(offset_of!(OptionsRecord, tid_array) == 72);
    assert!(offset_of!(OptionsRecord, flags) == 80);
    assert!(offset_of!(OptionsRecord, create_log_file) == 88);
    assert!(offset_of!(OptionsRecord, create_log_size) == 96);
    assert!(offset_of!(OptionsRecord, create_log_mode) == 112);
    assert!(size_of::<RegionDefRecord>() == 32);
    assert!(offset_of!(RegionDefRecord, length) == 16);
    assert!(offset_of!(RegionDefRecord, vmaddr) == 24);
};
