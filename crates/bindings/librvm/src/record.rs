//! The records of the C interface, byte for byte. What they mean is told in the headers.
//!
//! Enumerations are plain integers here: C may put anything in them.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;

/// `rvm_length_t`.
pub(crate) type Length = u64;

/// `rvm_offset_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offset {
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

/// What every record begins with.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) id: u32,
    /// Whether `rvm_malloc_X` or `rvm_copy_X` made it.
    pub(crate) from_heap: u32,
}

/// A type of record: what it is called, and how it begins.
pub(crate) trait Record: Copy {
    const ID: u32;
    /// A record as `rvm_init_X` leaves it.
    fn fresh(from_heap: bool) -> Self;
    fn head(&mut self) -> &mut Head;
}

/// `rvm_tid_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tid {
    pub(crate) head: Head,
    pub(crate) uname: Timeval,
    /// The open transaction's handle (`crate::transactions::Handle`), or NULL.
    pub(crate) tid: *mut c_void,
    pub(crate) reserved: Length,
}

/// `rvm_region_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) head: Head,
    pub(crate) data_dev: *mut c_char,
    pub(crate) dev_length: Offset,
    pub(crate) offset: Offset,
    pub(crate) vmaddr: *mut c_char,
    pub(crate) length: Length,
    pub(crate) no_copy: c_int,
}

/// `rvm_options_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) head: Head,
    pub(crate) log_dev: *mut c_char,
    pub(crate) truncate: c_long,
    pub(crate) recovery_buf_len: Length,
    pub(crate) flush_buf_len: Length,
    pub(crate) max_read_len: Length,
    pub(crate) log_empty: c_int,
    pub(crate) pager: *mut c_char,
    pub(crate) n_uncommit: c_long,
    pub(crate) tid_array: *mut Tid,
    pub(crate) flags: Length,
    pub(crate) create_log_file: c_int,
    pub(crate) create_log_size: Offset,
    pub(crate) create_log_mode: c_long,
}

/// `rvm_region_def_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionDef {
    pub(crate) offset: Offset,
    pub(crate) length: Length,
    pub(crate) vmaddr: *mut c_char,
}

/// `rvm_lenders_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lenders {
    pub(crate) configured: Length,
    pub(crate) members: Length,
    pub(crate) wanted: Length,
    pub(crate) counting: c_int,
}

/// What an options record has before the program chooses.
pub(crate) const TRUNCATE_DEFAULT: c_long = 50;
pub(crate) const RECOVERY_BUFFER_DEFAULT: Length = 256 * 1024;
pub(crate) const FLUSH_BUFFER_DEFAULT: Length = 256 * 1024;
pub(crate) const READ_DEFAULT: Length = 512 * 1024;
pub(crate) const LOG_MODE_DEFAULT: c_long = 0o600;

/// The beginning of a record of type `R`.
pub(crate) fn head_of<R: Record>(from_heap: bool) -> Head {
    Head {
        id: R::ID,
        from_heap: from_heap.into(),
    }
}

impl Record for Tid {
    const ID: u32 = 42;

    fn fresh(from_heap: bool) -> Tid {
        Tid {
            head: head_of::<Tid>(from_heap),
            uname: Timeval::default(),
            tid: null_mut(),
            reserved: 0,
        }
    }

    fn head(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl Record for Region {
    const ID: u32 = 40;

    fn fresh(from_heap: bool) -> Region {
        Region {
            head: head_of::<Region>(from_heap),
            data_dev: null_mut(),
            dev_length: Offset::default(),
            offset: Offset::default(),
            vmaddr: null_mut(),
            length: 0,
            no_copy: 0,
        }
    }

    fn head(&mut self) -> &mut Head {
        &mut self.head
    }
}

impl Record for Options {
    const ID: u32 = 41;

    fn fresh(from_heap: bool) -> Options {
        Options {
            head: head_of::<Options>(from_heap),
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
            create_log_size: Offset::default(),
            create_log_mode: LOG_MODE_DEFAULT,
        }
    }

    fn head(&mut self) -> &mut Head {
        &mut self.head
    }
}

// Programs compiled long ago carry these numbers. tests/c/layout.c says the same of the headers.
const _: () = {
    assert!(size_of::<Offset>() == 16);
    assert!(size_of::<Tid>() == 40);
    assert!(offset_of!(Tid, uname) == 8);
    assert!(offset_of!(Tid, tid) == 24);
    assert!(offset_of!(Tid, reserved) == 32);
    assert!(size_of::<Region>() == 72);
    assert!(offset_of!(Region, data_dev) == 8);
    assert!(offset_of!(Region, dev_length) == 16);
    assert!(offset_of!(Region, offset) == 32);
    assert!(offset_of!(Region, vmaddr) == 48);
    assert!(offset_of!(Region, length) == 56);
    assert!(offset_of!(Region, no_copy) == 64);
    assert!(size_of::<Options>() == 120);
    assert!(offset_of!(Options, log_dev) == 8);
    assert!(offset_of!(Options, truncate) == 16);
    assert!(offset_of!(Options, recovery_buf_len) == 24);
    assert!(offset_of!(Options, flush_buf_len) == 32);
    assert!(offset_of!(Options, max_read_len) == 40);
    assert!(offset_of!(Options, log_empty) == 48);
    assert!(offset_of!(Options, pager) == 56);
    assert!(offset_of!(Options, n_uncommit) == 64);
    assert!(offset_of!(Options, tid_array) == 72);
    assert!(offset_of!(Options, flags) == 80);
    assert!(offset_of!(Options, create_log_file) == 88);
    assert!(offset_of!(Options, create_log_size) == 96);
    assert!(offset_of!(Options, create_log_mode) == 112);
    assert!(size_of::<RegionDef>() == 32);
    assert!(offset_of!(RegionDef, length) == 16);
    assert!(offset_of!(RegionDef, vmaddr) == 24);
};
