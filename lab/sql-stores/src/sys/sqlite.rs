//! netram's VFS in the SQLite that this program is linked with.

use std::ffi::{c_char, c_int, c_void};

use netram_sqlite::{RegisterError, SqliteFunctions, register};
use rusqlite::ffi;

unsafe extern "C" fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller gives what SQLite's function takes.
    unsafe { ffi::sqlite3_vfs_find(name) }.cast()
}

unsafe extern "C" fn add(vfs: *mut c_void, as_usual: c_int) -> c_int {
    // SAFETY: the caller gives what SQLite's function takes.
    unsafe { ffi::sqlite3_vfs_register(vfs.cast(), as_usual) }
}

/// Registers netram's VFS with the SQLite that this program is linked with; again, it does nothing.
pub fn register_vfs() -> Result<(), RegisterError> {
    // SAFETY: it takes nothing, and may be called at any time.
    unsafe { ffi::sqlite3_initialize() };
    let functions = SqliteFunctions {
        vfs_find: find,
        vfs_register: add,
        log: Some(ffi::sqlite3_log),
    };
    // SAFETY: they are one SQLite's, which is initialised, and linked into this program.
    unsafe { register(functions) }
}
