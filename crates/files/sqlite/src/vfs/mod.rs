//! The VFS: functions that SQLite calls to open, name and remove files.
//!
//! It is a layer over SQLite's own VFS, which does all reading, writing, locking and mapping.
//!
//! | module | does |
//! |---|---|
//! | `abi` | SQLite's structures |
//! | `file` | an open file |
//! | `open_databases` | the databases that this process has open |
//! | `mapping` | the shared index, mapped |

mod abi;
mod file;
mod mapping;
mod open_databases;

use std::ffi::{CStr, CString, OsStr, c_char, c_double, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use netram_sqlite_machine::{DatabaseWriterError, FileRole};

use self::abi::{
    CANTOPEN, IOERR_DELETE, OK, OPEN_MAIN_DB, OPEN_MAIN_JOURNAL, OPEN_WAL, SqliteFile, SqliteVfs,
};
use self::file::VfsFileState;
pub(crate) use self::mapping::IndexMapping;
use crate::paths::DatabasePaths;

/// Name of the VFS: `file:app.db?vfs=netram`.
pub const VFS_NAME: &CStr = c"netram";

/// Error for a connection that a child of `fork` has inherited.
const FORKED: &str =
    "was opened by the parent of this process, and connections do not survive `fork`: open one here";

/// Type of `sqlite3_vfs_find`.
pub type VfsFindFn = unsafe extern "C" fn(*const c_char) -> *mut c_void;
/// Type of `sqlite3_vfs_register`.
pub type VfsRegisterFn = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
/// Type of `sqlite3_log`.
pub type SqliteLogFn = unsafe extern "C" fn(c_int, *const c_char, ...);

/// Functions of the SQLite library that gets the VFS.
#[derive(Clone, Copy, Debug)]
pub struct SqliteFunctions {
    /// `sqlite3_vfs_find`
    pub vfs_find: VfsFindFn,
    /// `sqlite3_vfs_register`
    pub vfs_register: VfsRegisterFn,
    /// `sqlite3_log`, for errors; without it they go only to standard error.
    pub log: Option<SqliteLogFn>,
}

/// Why the VFS cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// SQLite has no VFS to build on.
    #[error("this SQLite has no default VFS to build on")]
    NoBase,
    /// SQLite refused the registration.
    #[error("SQLite refuses the VFS with error {0}")]
    Refused(c_int),
}

/// The base VFS: SQLite's own, to which calls are forwarded.
struct BaseVfs {
    vfs: *mut SqliteVfs,
    log: Option<SqliteLogFn>,
}

// SAFETY: SQLite calls a VFS from all threads; it is not modified after its registration.
unsafe impl Send for BaseVfs {}
// SAFETY: as above.
unsafe impl Sync for BaseVfs {}

static BASE: OnceLock<BaseVfs> = OnceLock::new();

/// Registers the VFS with a SQLite library. A second call has no effect.
///
/// # Errors
///
/// See [`RegisterError`].
///
/// # Safety
/// The functions belong to one initialised SQLite of version 3.7 or newer, which stays in the process for its
/// lifetime.
pub unsafe fn register(sqlite: SqliteFunctions) -> Result<(), RegisterError> {
    // SAFETY: guaranteed by the caller.
    let there = unsafe { (sqlite.vfs_find)(VFS_NAME.as_ptr()) };
    if !there.is_null() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller; null asks for the default VFS.
    let base = unsafe { (sqlite.vfs_find)(std::ptr::null()) }.cast::<SqliteVfs>();
    if base.is_null() {
        return Err(RegisterError::NoBase);
    }
    let log = sqlite.log;
    let kept = BASE.get_or_init(|| BaseVfs { vfs: base, log });
    // SAFETY: a registered VFS lives for the rest of the process.
    let base = unsafe { &*kept.vfs };
    let ours = SqliteVfs {
        version: base.version.min(2),
        file_bytes: base.file_bytes + c_int::try_from(file::BYTES).unwrap_or(c_int::MAX),
        path_bytes_max: base.path_bytes_max,
        next: std::ptr::null_mut(),
        name: VFS_NAME.as_ptr(),
        data: std::ptr::null_mut(),
        open: Some(open),
        delete: Some(delete),
        access: Some(access),
        full_pathname: Some(full_pathname),
        dl_open: Some(dl_open),
        dl_error: Some(dl_error),
        dl_sym: Some(dl_sym),
        dl_close: Some(dl_close),
        randomness: Some(randomness),
        sleep: Some(sleep),
        current_time: Some(current_time),
        last_error: Some(last_error),
        current_time_ms: Some(current_time_ms),
    };
    let ours = Box::into_raw(Box::new(ours));
    // SAFETY: guaranteed by the caller; the structure is never freed.
    match unsafe { (sqlite.vfs_register)(ours.cast(), 0) } {
        OK => Ok(()),
        code => Err(RegisterError::Refused(code)),
    }
}

/// Reports an error in SQLite's log and on standard error. SQLite's error codes have no room for a reason.
fn report(code: c_int, text: &str) {
    if let Some(BaseVfs { log: Some(log), .. }) = BASE.get()
        && let Ok(text) = CString::new(text)
    {
        // SAFETY: SQLite's own function, with a format for one string.
        unsafe { log(code, c"netram: %s".as_ptr(), text.as_ptr()) };
    }
    // A commit must not wait for a reader of standard error.
    netram_log::try_write_line(std::io::stderr(), format_args!("netram: {text}"), Duration::ZERO);
}

/// Reports a problem that is not the error of any call.
pub(crate) fn warn(text: &str) {
    report(abi::WARNING, text);
}

fn base() -> *mut SqliteVfs {
    // The VFS can only be called after `register`.
    BASE.get().map_or(std::ptr::null_mut(), |base| base.vfs)
}

/// A path passed by SQLite.
///
/// # Safety
/// `name` is a C string that lives as long as the result is used.
unsafe fn path<'a>(name: *const c_char) -> &'a Path {
    // SAFETY: guaranteed by the caller.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes()))
}

unsafe extern "C" fn open(
    _vfs: *mut SqliteVfs,
    name: *const c_char,
    file: *mut SqliteFile,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite provides as many bytes as the VFS declares.
    unsafe { file::clear(file) };
    // SAFETY: SQLite passes a path, or null for a file without a name.
    let state = match unsafe { state_of(name, flags) } {
        Ok(state) => state,
        Err(reason) => {
            report(CANTOPEN, &reason);
            return CANTOPEN;
        }
    };
    let base = base();
    // SAFETY: a registered VFS lives for the rest of the process.
    let Some(method) = (unsafe { (*base).open }) else {
        return CANTOPEN;
    };
    // SAFETY: the base VFS's own method, with SQLite's arguments and as many bytes as it declares.
    let opened = unsafe { method(base, name, file::base_pointer(file), flags, out) };
    if opened == OK {
        // SAFETY: the structure was cleared, and the base VFS has opened its own.
        unsafe { file::begin(file, state) };
        return OK;
    }
    // SAFETY: the base VFS's `open` was called.
    unsafe { file::close_real(file) };
    if let Some(VfsFileState { database, role }) = state
        && role == FileRole::Main
        && let Err(error) = open_databases::close(database)
    {
        report(CANTOPEN, &error.to_string());
    }
    opened
}

/// Database and role of a file. `None`: it does not belong to a managed database.
///
/// # Safety
/// `name` is a C string, or null.
unsafe fn state_of(name: *const c_char, flags: c_int) -> Result<Option<VfsFileState>, String> {
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let path = unsafe { path(name) };
    if flags & OPEN_MAIN_DB != 0 {
        let place = DatabasePaths::of(path).map_err(|error| error.to_string())?;
        let database = open_databases::open(&place).map_err(|error| error.to_string())?;
        let role = FileRole::Main;
        return Ok(Some(VfsFileState { database, role }));
    }
    if flags & (OPEN_WAL | OPEN_MAIN_JOURNAL) != 0 {
        if let Some((database, role)) = open_databases::database_of_log(path) {
            return Ok(Some(VfsFileState { database, role }));
        }
        // Only a connection inherited by `fork` has no open database here. No record would have its writes.
        return match open_databases::is_log_of_managed(path) {
            true => Err(format!("{} {FORKED}", path.display())),
            false => Ok(None),
        };
    }
    Ok(None)
}

/// Error code of SQLite or of the database.
struct SqliteCode(c_int);

impl From<DatabaseWriterError> for SqliteCode {
    fn from(error: DatabaseWriterError) -> SqliteCode {
        report(IOERR_DELETE, &format!("removing a database's log: {error}"));
        SqliteCode(IOERR_DELETE)
    }
}

unsafe extern "C" fn delete(_vfs: *mut SqliteVfs, name: *const c_char, sync: c_int) -> c_int {
    let base = base();
    // SAFETY: a registered VFS lives for the rest of the process.
    let Some(method) = (unsafe { (*base).delete }) else {
        return IOERR_DELETE;
    };
    // SAFETY: SQLite passes a path.
    let path = unsafe { path(name) };
    let Some((database, role)) = open_databases::database_of_log(path) else {
        if open_databases::is_log_of_managed(path) {
            report(IOERR_DELETE, &format!("{} {FORKED}", path.display()));
            return IOERR_DELETE;
        }
        // SAFETY: the base VFS's own method, with SQLite's arguments.
        return unsafe { method(base, name, sync) };
    };
    // Without a sync of the directory: the journal makes the removal durable even if SQLite does not ask for
    // it. In delete mode the removal is the commit, and a crash would otherwise undo it.
    let removed = database.remove(role, || {
        // SAFETY: the base VFS's own method, with SQLite's arguments.
        match unsafe { method(base, name, 0) } {
            OK => Ok(()),
            code => Err(SqliteCode(code)),
        }
    });
    match removed {
        Ok(()) => OK,
        Err(SqliteCode(code)) => code,
    }
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut SqliteVfs,
    name: *const c_char,
    bytes: c_int,
    to: *mut c_char,
) -> c_int {
    let base = base();
    // SAFETY: a registered VFS lives for the rest of the process.
    let Some(method) = (unsafe { (*base).full_pathname }) else {
        return CANTOPEN;
    };
    // SAFETY: the base VFS's own method, with SQLite's arguments.
    let found = unsafe { method(base, name, bytes, to) };
    // A path through a symbolic link succeeds with an extended code.
    if found & 0xff != OK {
        return found;
    }
    // SAFETY: the base VFS has written a C string.
    let place = DatabasePaths::of(unsafe { path(to) });
    let place = place.and_then(|place| place.check_managed().map(|()| place));
    let inside = match place {
        Ok(place) => place.file(FileRole::Main),
        Err(error) => {
            report(CANTOPEN, &error.to_string());
            return CANTOPEN;
        }
    };
    let inside = inside.as_os_str().as_bytes();
    if inside.len() >= usize::try_from(bytes).unwrap_or(0) {
        return CANTOPEN;
    }
    // SAFETY: the length was checked against the buffer's.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(inside.as_ptr(), inside.len())
    };
    // SAFETY: and so was the byte after it.
    unsafe { to.wrapping_add(inside.len()).write(0) };
    found
}

/// Forwards a function to the base VFS.
macro_rules! pass {
    ($name:ident($($argument:ident: $type:ty),*) -> $out:ty, $none:expr) => {
        unsafe extern "C" fn $name(_vfs: *mut SqliteVfs, $($argument: $type),*) -> $out {
            let base = base();
            // SAFETY: a registered VFS lives for the rest of the process.
            match unsafe { (*base).$name } {
                // SAFETY: the base VFS's own method, with SQLite's arguments.
                Some(method) => unsafe { method(base, $($argument),*) },
                None => $none,
            }
        }
    };
}

pass!(access(name: *const c_char, flags: c_int, is: *mut c_int) -> c_int, abi::ERROR);
pass!(dl_open(name: *const c_char) -> *mut c_void, std::ptr::null_mut());
pass!(dl_error(bytes: c_int, to: *mut c_char) -> (), ());
pass!(dl_sym(library: *mut c_void, name: *const c_char) -> *mut c_void, std::ptr::null_mut());
pass!(dl_close(library: *mut c_void) -> (), ());
pass!(randomness(bytes: c_int, to: *mut c_char) -> c_int, 0);
pass!(sleep(microseconds: c_int) -> c_int, 0);
pass!(current_time(to: *mut c_double) -> c_int, abi::ERROR);
pass!(last_error(bytes: c_int, to: *mut c_char) -> c_int, 0);
pass!(current_time_ms(to: *mut i64) -> c_int, abi::ERROR);
