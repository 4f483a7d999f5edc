//! Entry point that SQLite calls when it loads the library.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::transmute;

use netram_sqlite::vfs::{SqliteLogFn, VfsFindFn, VfsRegisterFn};
use netram_sqlite::{SqliteFunctions, register};

/// Result code of a loaded extension that must not be unloaded.
const OK_LOAD_PERMANENTLY: c_int = 1 << 8;
/// `SQLITE_ERROR`.
const ERROR: c_int = 1;

/// Indices of functions in the table that an extension receives (`sqlite3_api_routines`), which only grows at
/// its end.
mod routine {
    pub(super) const VFS_FIND: usize = 141;
    pub(super) const VFS_REGISTER: usize = 142;
    pub(super) const LOG: usize = 167;
    pub(super) const MPRINTF: usize = 69;
}

/// `sqlite3_mprintf`: formats a string that SQLite frees.
type Print = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;

/// Registers the VFS for good: databases of other connections need the library.
///
/// # Safety
/// Must be called by SQLite, with the arguments it passes to extensions.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    error: *mut *mut c_char,
    routines: *const *const c_void,
) -> c_int {
    // SAFETY: every supported SQLite has at least this many entries.
    let routine = |index: usize| unsafe { routines.wrapping_add(index).read() };
    let sqlite = SqliteFunctions {
        // SAFETY: SQLite has a function of this type at this index.
        vfs_find: unsafe { transmute::<*const c_void, VfsFindFn>(routine(routine::VFS_FIND)) },
        // SAFETY: as above.
        vfs_register: unsafe { transmute::<*const c_void, VfsRegisterFn>(routine(routine::VFS_REGISTER)) },
        // SAFETY: as above.
        log: Some(unsafe { transmute::<*const c_void, SqliteLogFn>(routine(routine::LOG)) }),
    };
    // SAFETY: the functions belong to one initialised SQLite, and the loaded library stays in memory as long
    // as it does.
    let Err(reason) = (unsafe { register(sqlite) }) else {
        return OK_LOAD_PERMANENTLY;
    };
    let text = CString::new(reason.to_string()).unwrap_or_default();
    // SAFETY: SQLite has a function of this type at this index.
    let print = unsafe { transmute::<*const c_void, Print>(routine(routine::MPRINTF)) };
    // SAFETY: SQLite's own function, with a format for one string.
    let text = unsafe { print(c"%s".as_ptr(), text.as_ptr()) };
    if !error.is_null() {
        // SAFETY: SQLite passes a valid pointer for the message.
        unsafe { error.write(text) };
    }
    ERROR
}
