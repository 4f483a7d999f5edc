//! What SQLite calls when it loads the library.

use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::transmute;

use netram_sqlite::vfs::{SqliteLogFn, VfsFindFn, VfsRegisterFn};
use netram_sqlite::{SqliteFunctions, register};

/// An extension that stays.
const OK_LOAD_PERMANENTLY: c_int = 1 << 8;
/// What went wrong in general.
const ERROR: c_int = 1;

/// Where functions are in what an extension is given (`sqlite3_api_routines`), which only ever grows at its
/// end.
mod routine {
    pub(super) const VFS_FIND: usize = 141;
    pub(super) const VFS_REGISTER: usize = 142;
    pub(super) const LOG: usize = 167;
    pub(super) const MPRINTF: usize = 69;
}

/// SQLite's way to a string that it frees.
type Print = unsafe extern "C" fn(*const c_char, ...) -> *mut c_char;

/// Registers the VFS, for good: databases that other connections have open need the library.
///
/// # Safety
/// SQLite calls it, with what it gives to extensions.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sqlite3_extension_init(
    _database: *mut c_void,
    error: *mut *mut c_char,
    routines: *const *const c_void,
) -> c_int {
    // SAFETY: there are as many, in every SQLite that this is for.
    let routine = |index: usize| unsafe { routines.wrapping_add(index).read() };
    let sqlite = SqliteFunctions {
        // SAFETY: this is what SQLite has there.
        vfs_find: unsafe { transmute::<*const c_void, VfsFindFn>(routine(routine::VFS_FIND)) },
        // SAFETY: as above.
        vfs_register: unsafe { transmute::<*const c_void, VfsRegisterFn>(routine(routine::VFS_REGISTER)) },
        // SAFETY: as above.
        log: Some(unsafe { transmute::<*const c_void, SqliteLogFn>(routine(routine::LOG)) }),
    };
    // SAFETY: these are of one SQLite, which is initialised and loads what stays as long as it does.
    let Err(reason) = (unsafe { register(sqlite) }) else {
        return OK_LOAD_PERMANENTLY;
    };
    let text = CString::new(reason.to_string()).unwrap_or_default();
    // SAFETY: this is what SQLite has there.
    let print = unsafe { transmute::<*const c_void, Print>(routine(routine::MPRINTF)) };
    // SAFETY: SQLite's own, with a format that takes one string.
    let text = unsafe { print(c"%s".as_ptr(), text.as_ptr()) };
    if !error.is_null() {
        // SAFETY: SQLite gives a place for a message.
        unsafe { error.write(text) };
    }
    ERROR
}
