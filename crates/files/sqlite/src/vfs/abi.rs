//! SQLite's structures, as its `sqlite3.h` has them since 3.7.

use std::ffi::{c_char, c_double, c_int, c_void};

/// Done.
pub(super) const OK: c_int = 0;
/// It cannot be opened.
pub(super) const CANTOPEN: c_int = 14;
/// There are fewer bytes, and the rest is zeros.
pub(super) const IOERR_SHORT_READ: c_int = 10 | (2 << 8);
/// It is not durable.
pub(super) const IOERR_FSYNC: c_int = 10 | (4 << 8);
/// It is not removed, or not durably.
pub(super) const IOERR_DELETE: c_int = 10 | (10 << 8);
/// What is worth a line in SQLite's log.
pub(super) const WARNING: c_int = 28;
/// What went wrong in general.
pub(super) const ERROR: c_int = 1;

/// A database's own file.
pub(super) const OPEN_MAIN_DB: c_int = 0x100;
/// Its rollback journal.
pub(super) const OPEN_MAIN_JOURNAL: c_int = 0x800;
/// Its write-ahead log.
pub(super) const OPEN_WAL: c_int = 0x8_0000;

/// An open file: whoever opened it has more behind.
#[repr(C)]
pub(super) struct File {
    pub(super) methods: *const IoMethods,
}

type OfFile<A> = Option<A>;

/// What is done with a file.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IoMethods {
    pub(super) version: c_int,
    pub(super) close: OfFile<unsafe extern "C" fn(*mut File) -> c_int>,
    pub(super) read: OfFile<unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int>,
    pub(super) write: OfFile<unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int>,
    pub(super) truncate: OfFile<unsafe extern "C" fn(*mut File, i64) -> c_int>,
    pub(super) sync: OfFile<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub(super) file_size: OfFile<unsafe extern "C" fn(*mut File, *mut i64) -> c_int>,
    pub(super) lock: OfFile<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub(super) unlock: OfFile<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    pub(super) check_reserved_lock: OfFile<unsafe extern "C" fn(*mut File, *mut c_int) -> c_int>,
    pub(super) file_control: OfFile<unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int>,
    pub(super) sector_size: OfFile<unsafe extern "C" fn(*mut File) -> c_int>,
    pub(super) device_characteristics: OfFile<unsafe extern "C" fn(*mut File) -> c_int>,
    // Version 2.
    pub(super) shm_map:
        OfFile<unsafe extern "C" fn(*mut File, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub(super) shm_lock: OfFile<unsafe extern "C" fn(*mut File, c_int, c_int, c_int) -> c_int>,
    pub(super) shm_barrier: OfFile<unsafe extern "C" fn(*mut File)>,
    pub(super) shm_unmap: OfFile<unsafe extern "C" fn(*mut File, c_int) -> c_int>,
    // Version 3.
    pub(super) fetch: OfFile<unsafe extern "C" fn(*mut File, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(super) unfetch: OfFile<unsafe extern "C" fn(*mut File, i64, *mut c_void) -> c_int>,
}

/// What SQLite asks of a system. Only what version 2 has.
#[repr(C)]
pub(super) struct Vfs {
    pub(super) version: c_int,
    pub(super) file_bytes: c_int,
    pub(super) path_bytes_max: c_int,
    pub(super) next: *mut Vfs,
    pub(super) name: *const c_char,
    pub(super) data: *mut c_void,
    pub(super) open:
        Option<unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int>,
    pub(super) delete: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int>,
    pub(super) access: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub(super) full_pathname:
        Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub(super) dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub(super) dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub(super) dl_sym: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> *mut c_void>,
    pub(super) dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub(super) randomness: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub(super) sleep: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    pub(super) current_time: Option<unsafe extern "C" fn(*mut Vfs, *mut c_double) -> c_int>,
    pub(super) last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub(super) current_time_ms: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
}
