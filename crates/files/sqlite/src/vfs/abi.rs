//! SQLite's structures and codes, from `sqlite3.h` since version 3.7.

use std::ffi::{c_char, c_double, c_int, c_void};

/// Success.
pub(super) const OK: c_int = 0;
/// The file cannot be opened.
pub(super) const CANTOPEN: c_int = 14;
/// Fewer bytes were read than asked for; the rest was filled with zeros.
pub(super) const IOERR_SHORT_READ: c_int = 10 | (2 << 8);
/// The sync failed, so the data is not durable.
pub(super) const IOERR_FSYNC: c_int = 10 | (4 << 8);
/// The file could not be removed, or not durably.
pub(super) const IOERR_DELETE: c_int = 10 | (10 << 8);
/// Code of a warning in SQLite's log.
pub(super) const WARNING: c_int = 28;
/// Generic error.
pub(super) const ERROR: c_int = 1;

/// Open flag: a database's main file.
pub(super) const OPEN_MAIN_DB: c_int = 0x100;
/// Open flag: a rollback journal.
pub(super) const OPEN_MAIN_JOURNAL: c_int = 0x800;
/// Open flag: a write-ahead log.
pub(super) const OPEN_WAL: c_int = 0x8_0000;

/// Header of an open file; the VFS's own data follows it.
#[repr(C)]
pub(super) struct SqliteFile {
    pub(super) methods: *const IoMethods,
}

type FileMethod<A> = Option<A>;

/// Methods of an open file.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IoMethods {
    pub(super) version: c_int,
    pub(super) close: FileMethod<unsafe extern "C" fn(*mut SqliteFile) -> c_int>,
    pub(super) read: FileMethod<unsafe extern "C" fn(*mut SqliteFile, *mut c_void, c_int, i64) -> c_int>,
    pub(super) write: FileMethod<unsafe extern "C" fn(*mut SqliteFile, *const c_void, c_int, i64) -> c_int>,
    pub(super) truncate: FileMethod<unsafe extern "C" fn(*mut SqliteFile, i64) -> c_int>,
    pub(super) sync: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int>,
    pub(super) file_size: FileMethod<unsafe extern "C" fn(*mut SqliteFile, *mut i64) -> c_int>,
    pub(super) lock: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int>,
    pub(super) unlock: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int>,
    pub(super) check_reserved_lock: FileMethod<unsafe extern "C" fn(*mut SqliteFile, *mut c_int) -> c_int>,
    pub(super) file_control: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int, *mut c_void) -> c_int>,
    pub(super) sector_size: FileMethod<unsafe extern "C" fn(*mut SqliteFile) -> c_int>,
    pub(super) device_characteristics: FileMethod<unsafe extern "C" fn(*mut SqliteFile) -> c_int>,
    // Version 2.
    pub(super) shm_map:
        FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int, *mut *mut c_void) -> c_int>,
    pub(super) shm_lock: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int, c_int, c_int) -> c_int>,
    pub(super) shm_barrier: FileMethod<unsafe extern "C" fn(*mut SqliteFile)>,
    pub(super) shm_unmap: FileMethod<unsafe extern "C" fn(*mut SqliteFile, c_int) -> c_int>,
    // Version 3.
    pub(super) fetch:
        FileMethod<unsafe extern "C" fn(*mut SqliteFile, i64, c_int, *mut *mut c_void) -> c_int>,
    pub(super) unfetch: FileMethod<unsafe extern "C" fn(*mut SqliteFile, i64, *mut c_void) -> c_int>,
}

/// A VFS, with the methods of version 2.
#[repr(C)]
pub(super) struct SqliteVfs {
    pub(super) version: c_int,
    pub(super) file_bytes: c_int,
    pub(super) path_bytes_max: c_int,
    pub(super) next: *mut SqliteVfs,
    pub(super) name: *const c_char,
    pub(super) data: *mut c_void,
    pub(super) open: Option<
        unsafe extern "C" fn(*mut SqliteVfs, *const c_char, *mut SqliteFile, c_int, *mut c_int) -> c_int,
    >,
    pub(super) delete: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int) -> c_int>,
    pub(super) access:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub(super) full_pathname:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub(super) dl_open: Option<unsafe extern "C" fn(*mut SqliteVfs, *const c_char) -> *mut c_void>,
    pub(super) dl_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char)>,
    pub(super) dl_sym:
        Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void, *const c_char) -> *mut c_void>,
    pub(super) dl_close: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_void)>,
    pub(super) randomness: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub(super) sleep: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int) -> c_int>,
    pub(super) current_time: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut c_double) -> c_int>,
    pub(super) last_error: Option<unsafe extern "C" fn(*mut SqliteVfs, c_int, *mut c_char) -> c_int>,
    pub(super) current_time_ms: Option<unsafe extern "C" fn(*mut SqliteVfs, *mut i64) -> c_int>,
}
