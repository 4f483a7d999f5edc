//! netram's VFS in the SQLite that this program is linked with.

use std::ffi::{c_char, c_int, c_void};

use netram_sqlite::{RegisterError, SqliteFunctions, register};
use rusqlite::ffi;

unsafe extern "C" fn find(name: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes what SQLite's function requires.
    unsafe { ffi::sqlite3_vfs_find(name) }.cast()
}

unsafe extern "C" fn add(vfs: *mut c_void, as_usual: c_int) -> c_int {
    // SAFETY: the caller passes what SQLite's function requires.
    unsafe { ffi::sqlite3_vfs_register(vfs.cast(), as_usual) }
}

/// Registers netram's VFS with the SQLite that this program is linked with. Later calls do nothing.
///
/// # Errors
///
/// Fails if SQLite refuses the VFS.
pub fn register_vfs() -> Result<(), RegisterError> {
    // SAFETY: the function takes no arguments, and may be called at any time.
    unsafe { ffi::sqlite3_initialize() };
    let functions = SqliteFunctions {
        vfs_find: find,
        vfs_register: add,
        log: Some(ffi::sqlite3_log),
    };
    // SAFETY: the functions belong to the SQLite that is initialised and linked into this program.
    unsafe { register(functions) }
}
